package endings

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestOutputThatNoLogTookIsToldRight: a container writes more than its log's disk holds. Each way to
// look says so at its end.
func TestOutputThatNoLogTookIsToldRight(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		ref := image(t, n)
		d := death{script: "seq 1 50000; exit 3"}
		for owner, c := range map[string]struct {
			face face
			logs string
			says string // by the face's own call; Nomad's result has no words, its task's event has
		}{
			"cli":   {&cliFace{n: n, image: ref}, filepath.Join(n.Root, "logs"), "wait 3"},
			"cri":   {newCRIFace(t, n, ref), filepath.Join(n.Dir, "logs", "lost"), "Error 3 LOST"},
			"nomad": {newNomadFace(t, n, ref), filepath.Join(n.Dir, "alloc", allocID, "alloc/logs"), "code 3 signal 0 oom false"},
		} {
			t.Run(owner, func(t *testing.T) {
				unfill := fill(t, c.logs)
				if !c.face.start(t, "lost", d) {
					t.Fatal("it does not start")
				}
				said := c.face.ended(t)
				x := find(t, n, owner)
				verdict := regexp.MustCompile(`^exited with code 3; (\S+ KiB of its output is lost: no log could take it)$`).FindStringSubmatch(x.Autopsy.Verdict)
				if verdict == nil {
					t.Fatalf("ps: %+v", x.Autopsy)
				}
				if want := strings.Replace(c.says, "LOST", verdict[1], 1); said != want {
					t.Errorf("%s says %q, want %q", owner, said, want)
				}
				c.face.told(t, ending{code: 3}, verdict[0])
				if out, err := n.CLI("why", x.ID); err != nil || !strings.Contains(out, ": "+verdict[0]+"\n") {
					t.Errorf("why: %s, %v", out, err)
				}
				if e := exitEvent(t, n, x.ID); !strings.Contains(e, strconv.Quote(verdict[0])) || !strings.Contains(e, `"lost_output":`) {
					t.Errorf("events: %s", e)
				}
				if _, stderr, err := typed(t, n, "logs", x.ID); err != nil || !lostLine.MatchString(stderr) {
					t.Errorf("logs: %q, %v", stderr, err)
				}
				c.face.remove(t)
				unfill()
			})
		}
		t.Run("run", func(t *testing.T) {
			unfill := fill(t, filepath.Join(n.Root, "logs"))
			var exit *exec.ExitError
			// It shows the log, so that no client is too slow for it.
			out, stderr, err := typed(t, n, "run", "--name", "attached", ref, "/bin/sh", "-c", d.script)
			if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.HasPrefix(out, "1\n2\n3\n") || !lostLine.MatchString(stderr) {
				t.Errorf("%v, %q, %d bytes of output", err, stderr, len(out))
			}
			cli(t, n, "rm", "attached")
			// With --rm there is no log.
			out, stderr, err = typed(t, n, "run", "--rm", ref, "/bin/sh", "-c", d.script)
			if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.HasSuffix(out, "\n49999\n50000\n") || stderr != "" {
				t.Errorf("%v, %q, %d bytes of output", err, stderr, len(out))
			}
			unfill()
		})
		n.Check()
	})
}

// lostLine is the line of run and logs.
var lostLine = regexp.MustCompile(`(?m)^longshore: \S+ of the output is lost: no log could take it$`)

// fill mounts a disk of 64 KiB on a directory of logs.
func fill(t *testing.T, dir string) (unfill func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
}

// typed runs a command of the command line; both its outputs are shown.
func typed(t *testing.T, n *nodetest.Node, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), append([]string{"--state", n.State}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}
