package compose

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// archive is a local image, box, as docker saves one. It declares a volume, and nothing in it stops on SIGTERM but with a trap.
func archive(t *testing.T, name, text string) []byte {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", append([]string{"test", "sort", "[", "pwd"}, nodetest.Applets...)...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	files = append(files,
		imagetest.File{Name: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n")},
		imagetest.File{Name: "version", Mode: 0o644, Body: []byte(text)},
		// A service: it says its name, and ends at once when it is stopped.
		imagetest.File{Name: "bin/serve", Mode: 0o755, Body: []byte("#!/bin/sh\ntrap 'echo stopped $1; exit 0' TERM INT\necho serving $1\nwhile :; do sleep 1000 & wait $!; done\n")},
	)
	built := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{
		Cmd: []string{"serve"}, Env: []string{"PATH=/bin"}, Volumes: map[string]struct{}{"/declared": {}},
	}}.Build()
	var out bytes.Buffer
	if err := imagetest.WriteDocker(&out, map[string]imagetest.Built{"docker.io/library/" + name: built}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// serial runs the scripts one after the other: they share one node.
type serial struct{ *testing.T }

func (s serial) Parallel() {}

func (s serial) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serial{t}) })
}

func (s serial) Verbose() bool { return testing.Verbose() }

// TestScripts runs all scripts on one node, and checks the node at the end.
func TestScripts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		for name, text := range map[string]string{"box:latest": "1", "box:2": "2"} {
			if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, ":", "-")+".tar"), archive(t, name, text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{})
		for _, file := range []string{"box-latest.tar", "box-2.tar"} {
			if _, err := n.CLI("import", filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		testscript.RunT(serial{t}, testscript.Params{
			Dir: "testdata", RequireExplicitExec: true,
			Setup: func(env *testscript.Env) error {
				env.Setenv("LONGSHORE_SOCKET", filepath.Join(n.State, "control.sock"))
				env.Setenv("PATH", nodetest.Bin(t)+":"+os.Getenv("PATH"))
				env.Setenv("HOME", env.WorkDir)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"eventually": func(ts *testscript.TestScript, _ bool, args []string) { eventually(t, ts, args) },
				"before":     before,
				"nextagent": func(*testscript.TestScript, bool, []string) {
					n.Kill()
					n.Up()
				},
			},
		})
		left, err := n.CLI("ps", "-a", "-q")
		if err != nil || left != "" {
			t.Errorf("containers are left: %q, %v", left, err)
		}
		n.Check()
	})
}

// eventually runs a command of the shell until it succeeds: eventually COMMAND.
func eventually(t *testing.T, ts *testscript.TestScript, args []string) {
	if len(args) != 1 {
		ts.Fatalf("eventually takes a line for the shell")
	}
	roottest.Eventually(t, args[0], func() bool { return ts.Exec("sh", "-c", args[0]) == nil })
}

// before compares the times that containers have stored in files: before FIRST SECOND, where both are a line of `date +%s%N` or
// the time of /proc/uptime.
func before(ts *testscript.TestScript, _ bool, args []string) {
	at := make([]float64, 2)
	for i, file := range args {
		var err error
		if at[i], err = strconv.ParseFloat(strings.Fields(ts.ReadFile(file))[0], 64); err != nil {
			ts.Fatalf("%s: %v", file, err)
		}
	}
	if at[0] > at[1] {
		ts.Fatalf("%s is at %v, after %s at %v", args[0], at[0], args[1], at[1])
	}
}
