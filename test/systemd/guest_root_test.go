package systemd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	agent   = "longshore.service"
	dropIns = "/etc/systemd/system/longshore.service.d"
	config  = `[engine]
cgroup_driver = "systemd"
[network]
mode = "builtin"
[face.cri]
cgroup_driver = "systemd"
`
)

// guest is the machine that the test has for itself.
type guest struct {
	*nodetest.Node
	t *testing.T
}

// newGuest installs the agent. It skips the test where the machine is not a guest
// made for this.
func newGuest(t *testing.T) guest {
	t.Helper()
	g := bareGuest(t)
	g.install()
	return g
}

// bareGuest is newGuest without the agent.
func bareGuest(t *testing.T) guest {
	t.Helper()
	if os.Getenv(roottest.Env) != "1" {
		t.Skipf("needs a guest with systemd: hack/vm.sh systemd")
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile("/proc/1/comm")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(comm)) != "systemd" || !strings.Contains(string(cmdline), "longshore.mode=systemd") {
		t.Skip("pid 1 is not the systemd of a guest of hack/vm.sh: it would change this machine")
	}
	g := guest{Node: nodetest.Installed(t), t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the journal:\n%s", g.journal())
		}
	})
	return g
}

// install follows `make install`.
func (g guest) install() {
	g.t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		g.t.Fatal(err)
	}
	_, recipe, ok := strings.Cut(string(makefile), "\ninstall:")
	if !ok {
		g.t.Fatal("the Makefile has no install")
	}
	recipe, _, _ = strings.Cut(recipe, "\n\n")
	recipe = strings.NewReplacer("$(DESTDIR)", "", "$(PROGRAM)", nodetest.Bin(g.t)+"/longshore", "$(BIN)/", nodetest.Bin(g.t)+"/", " bin/", " "+nodetest.Bin(g.t)+"/").Replace(recipe)
	installed := 0
	for line := range strings.Lines(recipe) {
		if command, ok := strings.CutPrefix(line, "\t"); ok {
			g.run("sh", "-c", "cd ../.. && "+command)
			installed++
		}
	}
	if installed < 5 {
		g.t.Fatalf("install has %d commands:\n%s", installed, recipe)
	}
	g.write("/etc/longshore/config.toml", config)
	// The watchdog bites at the pace of a test.
	g.write(dropIns+"/test.conf", "[Service]\nWatchdogSec=30\n")
	g.run("systemctl", "daemon-reload")
}

func (g guest) write(path, text string) {
	g.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// run runs a command and returns its output.
func (g guest) run(name string, args ...string) string {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		g.t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// property is one of a unit's.
func (g guest) property(unit, name string) string {
	g.t.Helper()
	return g.run("systemctl", "show", "--value", "-p", name, unit)
}

// journal is the log of systemd, the agent and the kernel.
func (g guest) journal() string {
	out, err := exec.Command("journalctl", "-b", "-n", "200", "--no-pager", "-o", "short-monotonic").CombinedOutput() //nolint:forbidigo // the test is over
	if err != nil {
		return err.Error()
	}
	return string(out)
}
