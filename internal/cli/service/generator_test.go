package service

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/cli/base"
)

// write writes files below a new directory, by their paths.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// generated runs the generator, and returns its directory and its messages.
func generated(t *testing.T, g generator) (dir, messages string, err error) {
	t.Helper()
	var stderr bytes.Buffer
	g.App = base.NewApp(base.Options{Stderr: &stderr})
	g.log = filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(g.log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	err = g.write(dir)
	logged, lerr := os.ReadFile(g.log)
	if lerr != nil || (len(logged) > 0) != (stderr.Len() > 0) || len(logged) > 0 && !strings.HasPrefix(string(logged), "<4>longshore-generator[") {
		t.Errorf("the kernel's log has %q, %v", logged, lerr)
	}
	return dir, stderr.String(), err
}

const plain = "[Container]\nImage=example.com/x\nExec=true\n[Install]\nWantedBy=multi-user.target\n"

// TestGeneratorReadsDirectories checks which files count: the first directory, subdirectories, links, but no users.
func TestGeneratorReadsDirectories(t *testing.T) {
	first := write(t, map[string]string{"a.container": plain, "sub/deep/b.container": plain, "users/c.container": plain, "sub/users/d.container": plain, "notes.txt": "x", "tpl@.container": plain})
	second := write(t, map[string]string{"a.container": "[Container]\nImage=example.com/shadowed\n", "e.container": plain, "a.container.d/x.conf": "[Container]\nLabel=more=yes\n"})
	for link, target := range map[string]string{"tpl@one.container": "tpl@.container", "sub/circle": "..", "dangling.container": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(first, link)); err != nil {
			t.Fatal(err)
		}
	}
	linked := filepath.Join(t.TempDir(), "linked")
	if err := os.Symlink(second, linked); err != nil {
		t.Fatal(err)
	}
	dir, messages, err := generated(t, generator{dirs: []string{"/nonexistent", first, linked}})
	if exit := new(base.ExitError); !errors.As(err, &exit) || exit.Status != 1 || !strings.Contains(messages, "dangling.container") {
		t.Errorf("a link to nothing: %v, %s", err, messages)
	}
	units, err := filepath.Glob(filepath.Join(dir, "*.service"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range units {
		units[i] = filepath.Base(units[i])
	}
	if want := []string{"a.service", "b.service", "d.service", "e.service", "tpl@.service", "tpl@one.service"}; !slices.Equal(units, want) {
		t.Errorf("units %v, want %v", units, want)
	}
	a, err := os.ReadFile(filepath.Join(dir, "a.service"))
	if err != nil || !strings.Contains(string(a), "--label=more=yes example.com/x true\n") {
		t.Errorf("%v, %s", err, a)
	}
	for _, name := range []string{"a.service", "tpl@one.service"} {
		if target, err := os.Readlink(filepath.Join(dir, "multi-user.target.wants", name)); err != nil || target != "../"+name {
			t.Errorf("the link of %s: %s, %v", name, target, err)
		}
	}
}

// TestMasksAndNotes checks that a link to /dev/null hides a later file, and that systemd's log gets no notes.
func TestMasksAndNotes(t *testing.T) {
	first := write(t, map[string]string{"b.container": "[Container]\nImage=example.com/x\nAutoUpdate=registry\n"})
	if err := os.Symlink("/dev/null", filepath.Join(first, "a.container")); err != nil {
		t.Fatal(err)
	}
	g := generator{dirs: []string{first, write(t, map[string]string{"a.container": plain})}}
	dir, messages, err := generated(t, g)
	if err != nil || messages != "" {
		t.Errorf("messages %q, %v", messages, err)
	}
	if units, err := filepath.Glob(filepath.Join(dir, "*.service")); err != nil || len(units) != 1 || filepath.Base(units[0]) != "b.service" {
		t.Errorf("units %v, %v", units, err)
	}
	var out, said bytes.Buffer
	g.App = base.NewApp(base.Options{Stdout: &out, Stderr: &said})
	if err := g.print(); err != nil || !strings.Contains(said.String(), "Longshore updates no images by itself") {
		t.Errorf("--dry-run has no note: %q, %v", said.String(), err)
	}
}

// TestGeneratorLeavesFilesToPodman checks that nothing is written beside Podman's generator, unless that is masked.
func TestGeneratorLeavesFilesToPodman(t *testing.T) {
	files := write(t, map[string]string{"a.container": plain, "b.pod": ""})
	installed, none := write(t, map[string]string{podmanGenerator: "x"}), t.TempDir()
	masked := t.TempDir()
	if err := os.Symlink("/dev/null", filepath.Join(masked, podmanGenerator)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		others []string
		writes bool
	}{{"absent", []string{none}, true}, {"installed", []string{none, installed}, false}, {"masked", []string{masked, installed}, true}} {
		dir, messages, err := generated(t, generator{dirs: []string{files}, others: c.others})
		_, missing := os.Stat(filepath.Join(dir, "a.service"))
		if c.writes != (missing == nil) || c.writes != (err != nil) || c.writes != strings.Contains(messages, "b.pod:1: .pod files are refused") {
			t.Errorf("%s: %v, %v, %q", c.name, missing, err, messages)
		}
	}
}

// TestSystemdAcceptsTheUnits lets systemd itself check units of the generator and of the command unit.
func TestSystemdAcceptsTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd is not installed")
	}
	files := write(t, map[string]string{
		"net.network": "[Network]\n", "data.volume": "[Volume]\n", "tpl@.container": plain,
		"odd.container": "[Unit]\nAfter=data.volume\n[Container]\nImage=x\nNetwork=net.network\nVolume=data.volume:/data\nVolume=/srv/a b:/b\nEnvironment=\"A=x\\nExecStart=/bin/evil\" 'B=\"' C=\\x01\n" +
			"Exec=sh -c 'echo $$HOME; %n' ; \"\" \\\n  ${X}\nReloadSignal=HUP\nStopTimeout=100\n[Service]\nRestart=always\n",
	})
	dir, messages, err := generated(t, generator{dirs: []string{files}})
	if err != nil || messages != "" {
		t.Fatal(err, messages)
	}
	u := &unit{name: "web", image: "x 100%", version: "1", program: executable(), socket: "/run/a b/c", restart: "always"}
	if err := u.existing(); err != nil {
		t.Fatal(err)
	}
	u.start = append(u.start, "a\nb", `"`, "%n", "$HOME")
	if err := os.WriteFile(filepath.Join(dir, "web.service"), []byte(u.text()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "longshore.service"), []byte("[Service]\nExecStart=/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(names ...string) string {
		t.Helper()
		args := []string{"verify", "--man=no"}
		for _, n := range names {
			args = append(args, filepath.Join(dir, n))
		}
		out, _ := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput() // an error shows in the output
		return string(out)
	}
	if out := verify("net-network.service", "data-volume.service", "odd.service", "web.service", "tpl@x.service"); out != "" {
		t.Errorf("systemd says:\n%s", out)
	}
	if err := os.WriteFile(filepath.Join(dir, "wrong.service"), []byte("[Service]\nType=notfy\nExecStart=/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := verify("wrong.service"); !strings.Contains(out, "notfy") {
		t.Errorf("systemd finds no error in a wrong unit: %s", out)
	}
}
