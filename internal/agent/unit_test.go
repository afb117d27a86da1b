package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const units = "../../contrib/systemd"

// TestTheUnitRestrictsWhatIsNotInherited: the unit has the settings that protect the agent, and
// none that containers would inherit or that need a mount namespace.
func TestTheUnitRestrictsWhatIsNotInherited(t *testing.T) {
	has := settings(t, "longshore.service")
	for name, want := range map[string]string{
		"LimitCORE": "0:infinity", "UMask": "0022", "OOMPolicy": "continue", "KillMode": "process", "Delegate": "yes", "Type": "notify",
	} {
		if has[name] != want {
			t.Errorf("%s=%s, want %s", name, has[name], want)
		}
	}
	for _, name := range []string{
		// These use seccomp, which is inherited.
		"LockPersonality", "SystemCallArchitectures", "SystemCallFilter", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime",
		"RestrictSUIDSGID", "MemoryDenyWriteExecute", "ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
		"ProtectKernelTunables",
		// These are inherited in other ways.
		"NoNewPrivileges", "CapabilityBoundingSet", "SecureBits",
		// These need a mount namespace.
		"PrivateTmp", "PrivateDevices", "PrivateMounts", "ProtectSystem", "ProtectHome", "ProtectControlGroups", "ProtectProc", "ReadOnlyPaths",
		"InaccessiblePaths", "BindPaths", "RuntimeDirectory",
	} {
		if v, ok := has[name]; ok {
			t.Errorf("%s=%s", name, v)
		}
	}
	for _, socket := range []string{"longshore.socket", "longshore-cri.socket"} {
		if s := settings(t, socket); s["DirectoryMode"] != "0700" || s["SocketMode"] != "0600" {
			t.Errorf("%s: directory %s, socket %s", socket, s["DirectoryMode"], s["SocketMode"])
		}
	}
}

// settings reads a unit's settings, of every section.
func settings(t *testing.T, unit string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(units, unit))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			all[name] = value
		}
	}
	return all
}

// TestSystemdUnderstandsTheUnits lets systemd verify them.
func TestSystemdUnderstandsTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	dir := t.TempDir()
	list, err := os.ReadDir(units)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range list {
		text, err := os.ReadFile(filepath.Join(units, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, e.Name())
		program := strings.NewReplacer("/usr/bin/longshore-hub", "/bin/true", "/usr/bin/longshore", "/bin/true").Replace(string(text)) // systemd warns of programs that are not installed
		if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	verify := func(paths ...string) string {
		out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
		if err != nil {
			t.Logf("systemd-analyze: %v", err)
		}
		var ours []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "longshore") {
				ours = append(ours, line)
			}
		}
		return strings.Join(ours, "")
	}
	if out := verify(paths...); out != "" {
		t.Errorf("systemd says:\n%s", out)
	}
	// The control: systemd warns of an unknown setting.
	wrong := filepath.Join(dir, "longshore-wrong.service")
	if err := os.WriteFile(wrong, []byte("[Service]\nExecStart=/bin/true\nLimitCORE=some\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if verify(wrong) == "" {
		t.Skip("systemd-analyze does not complain here")
	}
}
