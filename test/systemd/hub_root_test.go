package systemd

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

const hub = "longshore-hub.service"

// TestHubPackage: the hub's Debian package installs a disabled hub, serves as configured,
// survives upgrade and kill, and is removed and purged.
func TestHubPackage(t *testing.T) {
	g := bareGuest(t)
	g.baseDpkg()
	g.run("dpkg", "-i", deb("1.0.0", "longshore-hub"))
	if state := g.property(hub, "ActiveState") + " " + g.property(hub, "UnitFileState"); state != "inactive disabled" {
		t.Errorf("after its installation the hub is %s", state)
	}

	g.write("/etc/longshore-hub/options", "LONGSHORE_HUB_OPTIONS=\"--listen 127.0.0.1:2377 --heartbeat 1s\"\n")
	g.write("/etc/longshore-hub/passphrase", "no one knows it\n")
	g.run("chown", "longshore-hub:", "/etc/longshore-hub/passphrase")
	g.run("chmod", "600", "/etc/longshore-hub/passphrase")
	g.run("systemctl", "enable", "--now", hub)
	main := g.property(hub, "MainPID")
	token := g.run("longshore-hub", "token")
	if !strings.HasPrefix(token, "SWMTKN-1-") {
		t.Errorf("the token is %q", token)
	}

	// A process that may do nothing reads strangers' messages.
	status := g.read("/proc/" + main + "/status")
	for _, line := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line+"\n") {
			t.Errorf("the hub has not %q", line)
		}
	}
	if strings.Contains(status, "Uid:\t0\t") {
		t.Error("the hub is root")
	}
	if info, err := os.Stat("/var/lib/longshore-hub"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its records: %v, %v", info, err)
	}

	g.run("dpkg", "-i", deb("2.0.0", "longshore-hub"))
	if now := g.property(hub, "MainPID"); now == main || now == "0" {
		t.Errorf("the hub was %s and is %s after the upgrade", main, now)
	}
	if now := g.run("longshore-hub", "token"); now != token {
		t.Errorf("the upgrade has changed the token from %q to %q", token, now)
	}
	main = g.property(hub, "MainPID")
	g.run("systemctl", "kill", "--signal=KILL", hub)
	nodetest.Eventually(t, "systemd starts the hub again", func() bool {
		now := g.property(hub, "MainPID")
		return now != "0" && now != main && g.property(hub, "ActiveState") == "active"
	})
	if now := g.run("longshore-hub", "token"); now != token {
		t.Errorf("its death has changed the token from %q to %q", token, now)
	}

	g.run("dpkg", "--remove", "longshore-hub")
	if left := nodetest.Processes("longshore-hub", ""); len(left) != 0 {
		t.Errorf("the hub runs on as %v", left)
	}
	if _, err := os.Stat("/var/lib/longshore-hub/etcd"); err != nil {
		t.Errorf("the removal has taken its records: %v", err)
	}
	g.run("dpkg", "--purge", "longshore-hub")
	for _, name := range []string{"/var/lib/longshore-hub", "/etc/longshore-hub"} {
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the purge has left %s: %v", name, err)
		}
	}
}
