package face_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/testdata/echo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echoLines is the most that the echo face may have: the common parts stand in the packages that
// faces share.
const echoLines = 150

func TestTheEchoFaceIsSmall(t *testing.T) {
	files, err := filepath.Glob("testdata/echo/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no file of the face: %v", err)
	}
	n := 0
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(src, []byte("\n"))
	}
	if n >= echoLines {
		t.Errorf("it has %d lines, at most %d", n, echoLines-1)
	}
}

// echoRig is the echo face over a node of fakes.
type echoRig struct {
	*enginetest.Node
	t      *testing.T
	dir    string
	socket string
	stop   func() // ends the face
}

func newEchoRig(t *testing.T) *echoRig {
	t.Helper()
	sockets, err := os.MkdirTemp("", "ls") // a socket's address is short, a test's directory need not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	r := &echoRig{Node: enginetest.Fakes(t), t: t, dir: t.TempDir(), socket: filepath.Join(sockets, "echo.sock")}
	r.Images.Offer("busybox", imagespec.ImageConfig{User: "web"}, map[string]string{"etc/passwd": "web:x:33:33::/srv:/bin/sh\n", "etc/group": "web:x:33:\n"})
	r.Supervisor.Program("cat", func(p *enginetest.Process) int {
		_, _ = fmt.Fprintln(p.Stdout(), "hello")
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 3
	})
	return r
}

// start starts the engine and the face, as an agent does.
func (r *echoRig) start() {
	r.t.Helper()
	r.Start()
	_ = os.Remove(r.socket)
	l, err := new(net.ListenConfig).Listen(r.t.Context(), "unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	f := &echo.Face{Deps: face.Deps{Engine: r.As(core.OwnerCLI), Logger: slog.New(slog.DiscardHandler)}, LogDir: r.dir}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, l) }()
	r.stop = func() {
		cancel()
		if err := <-served; err != nil {
			r.t.Errorf("serve: %v", err)
		}
		r.stop = func() {}
	}
	r.t.Cleanup(func() { r.stop() })
}

// restart is the agent's death and the next one's start.
func (r *echoRig) restart() {
	r.stop()
	r.Stop()
	r.start()
}

// dial asks for something.
func (r *echoRig) dial(request string) *net.UnixConn {
	r.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// ask sends a request and no more, and returns the answer.
func (r *echoRig) ask(request string) string {
	r.t.Helper()
	c := r.dial(request)
	if err := c.CloseWrite(); err != nil {
		r.t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(answer)
}

// seen asks until the face has seen an end: it hears of one a moment later.
func (r *echoRig) seen(want string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	got := ""
	for got != want {
		got = r.ask("ends\n")
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.t.Fatalf("ends: %q, want %q", got, want)
		}
	}
}

// TestTheEchoFace runs a container, attaches to it, and follows its end.
func TestTheEchoFace(t *testing.T) {
	r := newEchoRig(t)
	r.start()
	first := r.dial("run a busybox cat\n")
	hello := make([]byte, len("hello\n"))
	if _, err := io.ReadFull(first, hello); err != nil || string(hello) != "hello\n" {
		t.Fatalf("%q, %v", hello, err)
	}
	c, err := r.As(core.OwnerCLI).ContainerByKey(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(first, "one "); err != nil {
		t.Fatal(err)
	}
	second := r.dial("run a busybox cat\n") // the same
	if _, err := io.ReadFull(second, hello); err != nil || string(hello) != "hello\n" {
		t.Fatalf("%q, %v", hello, err)
	}
	if err := first.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]*net.UnixConn{"first": first, "second": second} {
		if rest, err := io.ReadAll(conn); err != nil || string(rest) != "one \nexit 3\n" && string(rest) != "one exit 3\n" {
			t.Errorf("the %s: %q, %v", name, rest, err)
		}
	}
	r.seen("a 3\n")
	if got := r.ask("remove a\n"); got != "" {
		t.Errorf("remove: %q", got)
	}
	r.seen("")
	if got := r.ask("what\n"); !strings.Contains(got, "none of run") {
		t.Errorf("%q", got)
	}
	if _, err := r.As(core.OwnerCLI).Container(t.Context(), c.ID); err == nil {
		t.Error("the container is there after its removal")
	}
	r.clean()
}

func (r *echoRig) clean() {
	r.t.Helper()
	r.Settle()
	r.Clean()
	if left := r.Left(); len(left) > 0 {
		r.t.Errorf("left: %v", left)
	}
}

// TestTheEchoFaceIsKilled while a container runs: the container does not notice, a second request
// has all of its output, and an end meanwhile is seen.
func TestTheEchoFaceIsKilled(t *testing.T) {
	r := newEchoRig(t)
	r.start()
	hello := make([]byte, len("hello\n"))
	for _, name := range []string{"a", "b"} {
		if _, err := io.ReadFull(r.dial("run "+name+" busybox cat\n"), hello); err != nil {
			t.Fatal(err)
		}
	}
	b, err := r.As(core.OwnerCLI).ContainerByKey(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.Stop()
	r.Supervisor.Exit(core.Ref{Container: b.ID}, 7)
	r.start()
	r.seen("b 7\n")
	if got := r.ask("run a busybox cat\nagain"); got != "hello\nagain\nexit 3\n" && got != "hello\nagainexit 3\n" {
		t.Errorf("%q", got)
	}
	if got := r.ask("run b busybox cat\n"); got != "hello\nexit 7\n" {
		t.Errorf("%q", got)
	}
	for _, name := range []string{"a", "b"} {
		if got := r.ask("remove " + name + "\n"); got != "" {
			t.Errorf("remove: %q", got)
		}
	}
	r.clean()
}

// TestTheEchoFaceDiesInARun, after each stage: a second request has the output and the exit.
func TestTheEchoFaceDiesInARun(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r := newEchoRig(t)
		crash := r.Crashes()
		r.start()
		run := func(ctx context.Context) error {
			c := r.dial("run a busybox cat\nwords")
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			if err := c.CloseWrite(); err != nil {
				return err
			}
			answer, err := io.ReadAll(c)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(string(answer), "hello\n") || !strings.Contains(string(answer), "words") || !strings.HasSuffix(string(answer), "exit 3\n") {
				return fmt.Errorf("the answer: %q", answer)
			}
			r.seen("a 3\n")
			return nil
		}
		return enginetest.Life{
			Node: r.Node, Crash: crash, Call: run, Restart: r.restart,
			Again: func() error { return run(t.Context()) },
			Clear: func() error {
				if got := r.ask("remove a\n"); got != "" && !strings.Contains(got, "not found") {
					return errors.New(got)
				}
				return nil
			},
		}
	})
}
