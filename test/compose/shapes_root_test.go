package compose

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// shape is a Compose file of a published shape, with local images.
type shape struct {
	path, name    string
	scale, change string // services; scale is - without one that several containers can have
}

var head = regexp.MustCompile(`^# scale: (\S+); change: (\S+)\n`)

// shapes copies the files to a directory, because services make directories beside them.
func shapes(t *testing.T, dir string) (list []shape) {
	t.Helper()
	paths, err := filepath.Glob("testdata/shapes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := head.FindStringSubmatch(string(data))
		if m == nil {
			t.Fatalf("%s does not begin with the services that are scaled and changed", path)
		}
		own := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(own, data, 0o600); err != nil {
			t.Fatal(err)
		}
		list = append(list, shape{own, strings.TrimSuffix(filepath.Base(path), ".yaml"), m[1], m[2]})
	}
	if len(list) < 20 {
		t.Fatalf("there are only %d shapes", len(list))
	}
	return list
}

// longshore runs a command with variables, and returns its output and its messages.
func longshore(t *testing.T, n *nodetest.Node, env []string, args ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(nodetest.Bin(t), "longshore"), args...)
	cmd.Env = append(append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(n.State, "control.sock"), "XDG_STATE_HOME="+n.Dir), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("longshore %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), errs.String()
}

// TestShapes takes each file through its life: up, up again, more containers, a change of one service, down. Nothing is left.
func TestShapes(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		list := shapes(t, t.TempDir())
		n := nodetest.Start(t, nodetest.Options{})
		tar := filepath.Join(t.TempDir(), "box.tar")
		if err := os.WriteFile(tar, archive(t, "box:latest", "1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := n.CLI("import", tar); err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			t.Run(s.name, func(t *testing.T) { live(t, n, s) })
		}
		n.Check()
	})
}

// live takes one file through its life.
func live(t *testing.T, n *nodetest.Node, s shape) {
	t.Helper()
	before := []string{"CHANGE_TOKEN=first"}
	after := []string{"CHANGE=1", "CHANGE_TOKEN=second"}
	run := func(env []string, args ...string) (string, string) {
		t.Helper()
		return longshore(t, n, env, append([]string{args[0], "-f", s.path, "-p", s.name}, args[1:]...)...)
	}
	services := func() []string {
		t.Helper()
		out, _ := longshore(t, n, nil, "ps", "-a", "-p", s.name, "--format", `{{.Label "com.docker.compose.service"}} {{.State}}`)
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	run(before, "up", "--wait", "--wait-timeout", "60")
	first := services()
	if _, said := run(before, "up", "-d"); strings.Contains(said, "Creat") || strings.Contains(said, "Recreat") {
		t.Errorf("up again:\n%s", said)
	}
	if s.scale != "-" {
		_, said := run(before, "up", "-d", "--scale", s.scale+"=3")
		if strings.Contains(said, "Recreat") || strings.Count(strings.Join(services(), "\n"), s.scale+" running") != 3 {
			t.Errorf("scale %s:\n%s\n%v", s.scale, said, services())
		}
	}
	_, said := run(after, "up", "-d")
	for line := range strings.Lines(said) {
		if strings.Contains(line, "Recreated") && !strings.Contains(line, s.change) {
			t.Errorf("after a change of %s: %s", s.change, line)
		}
	}
	if !strings.Contains(said, "Recreated") {
		t.Errorf("a change of %s:\n%s", s.change, said)
	}
	if last := services(); strings.Join(last, "\n") == "" || len(last) != len(first) {
		t.Errorf("services: first %v, after the change %v", first, last)
	}
	longshore(t, n, nil, "volume", "prune", "-f") // the anonymous ones of containers that were too many
	run(after, "down", "-v", "-t", "1")
	if left, _ := longshore(t, n, nil, "ps", "-a", "-q"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
	if left, _ := longshore(t, n, nil, "volume", "ls", "-q"); left != "" {
		t.Errorf("volumes are left: %s", left)
	}
	if left, _ := longshore(t, n, nil, "network", "ls", "-q"); left != "" {
		t.Errorf("networks are left: %s", left)
	}
}
