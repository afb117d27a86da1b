package cli_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/longshore/longshore/internal/cli"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/cli/composefile/read"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		composefile.Program: func() { os.Exit(read.Main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) },
		"longshore": func() {
			base.CompleteTime = time.Minute
			os.Exit(cli.Main(context.Background(), cli.Options{
				Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: "1.2.3",
				Agent: func(ctx context.Context, cfg config.Config, log *slog.Logger, _ *slog.LevelVar) error {
					log.InfoContext(ctx, "agent would run", "root", cfg.Agent.Root, "state", cfg.Agent.State, "socket", cfg.Face.CRI.Socket)
					return nil
				},
			}))
		},
	})
}

// node is a fake node with the control API on it.
func node(t *testing.T) (n *enginetest.Node, socket string) {
	t.Helper()
	n = enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	n.AddImage("busybox", ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}, map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\n"})
	n.Images.Offer("nginx", ocispec.ImageConfig{Cmd: []string{"sh"}}, nil)
	n.Images.OfferAs("checked", core.Image{
		ID: "sha256:c0ffee", Digest: "sha256:c0ffee00", Config: ocispec.Image{Config: ocispec.ImageConfig{Cmd: []string{"sh"}}},
		Health: &core.HealthCheck{Test: []string{"CMD", "true"}, Interval: 50 * time.Millisecond},
	})
	for name, program := range map[string]enginetest.Program{
		"echo": func(p *enginetest.Process) int {
			_, _ = fmt.Fprintln(p.Stdout(), strings.Join(p.Args[1:], " "))
			return 0
		},
		"cat": func(p *enginetest.Process) int {
			_, _ = io.Copy(p.Stdout(), p.Stdin)
			return 0
		},
		"both": func(p *enginetest.Process) int {
			_, _ = fmt.Fprintln(p.Stdout(), "out")
			_, _ = fmt.Fprintln(p.Stderr(), "err")
			return 7
		},
		"/bin/sh": func(p *enginetest.Process) int { return 0 },
		"true":    func(p *enginetest.Process) int { return 0 },
		"sick": func(p *enginetest.Process) int {
			_, _ = fmt.Fprintln(p.Stdout(), "it is sick")
			return 3
		},
		"env": func(p *enginetest.Process) int {
			_, _ = fmt.Fprintln(p.Stdout(), strings.Join(p.Env, "\n"))
			return 0
		},
		"tick": func(p *enginetest.Process) int {
			for i := range 3 {
				_, _ = fmt.Fprintln(p.Stdout(), "tick", i)
			}
			return 0
		},
		"once": func(p *enginetest.Process) int {
			word := make([]byte, len("hello"))
			_, _ = io.ReadFull(p.Stdin, word)
			_, _ = fmt.Fprintf(p.Stdout(), "got %s\r\n", word)
			return 5
		},
		"sh": func(p *enginetest.Process) int {
			<-p.Killed
			return 0
		},
	} {
		n.Supervisor.Program(name, program)
	}
	dir, err := os.MkdirTemp("", "ls") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	srv, err := control.New(control.Options{
		Engine: n.Engine, Transfers: n.Images, LogDir: filepath.Join(t.TempDir(), "logs"), Version: "1.2.3", Logger: slog.New(slog.DiscardHandler),
		Doctor: func(context.Context, bool) []control.Finding {
			return []control.Finding{
				{Name: "kernel", Status: control.FindingOK, Detail: "6.1"},
				{Name: "runtime runc", Status: control.FindingFail, Detail: "not there", Hint: "install it"},
			}
		},
		Check:  func(context.Context, bool) ([]control.Finding, error) { return nil, nil },
		Config: func() (string, error) { return "[agent]\n", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ls, err := control.Listen(t.Context(), dir, control.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, ls) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return n, filepath.Join(dir, control.SocketName)
}

// hybrid is the socket of a virtual machine monitor, behind which the control API is port
// 1026 of a guest.
func hybrid(t *testing.T, control string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(control), "hybrid")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		asked := make([]byte, len("CONNECT 1026\n"))
		if _, err := io.ReadFull(c, asked); err != nil || string(asked) != "CONNECT 1026\n" {
			return
		}
		_, _ = io.WriteString(c, "OK 1\n")
		back, err := net.Dial("unix", control)
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(back, c)
			_ = back.Close()
		}()
		_, _ = io.Copy(c, back)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return path
}

type nodeKey struct{}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Condition: func(name string) (bool, error) {
			if name != "bash-completion" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			_, err := os.Stat("/usr/share/bash-completion/bash_completion")
			return err == nil, nil
		},
		Setup: func(env *testscript.Env) error {
			n, socket := node(t)
			env.Values[nodeKey{}] = n
			env.Setenv("LONGSHORE_SOCKET", socket)
			env.Setenv("HYBRID", hybrid(t, socket))
			env.Setenv("TZ", "UTC")
			env.Setenv("XDG_STATE_HOME", env.WorkDir)
			env.Setenv("GORACE", os.Getenv("GORACE")) // the programs that a script starts heed it too
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"end": end, "health": healthIs, "foreign": foreign, "pushed": pushed,
		},
	})
}

func nodeOf(ts *testscript.TestScript) *enginetest.Node {
	n, ok := ts.Value(nodeKey{}).(*enginetest.Node)
	if !ok {
		ts.Fatalf("no node")
	}
	return n
}

// end ends a container's main process: end KEY CODE|oom.
func end(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	ctx := context.Background()
	c, err := n.As(core.OwnerCLI).ContainerByKey(ctx, core.Key(args[0]))
	ts.Check(err)
	ref := core.Ref{Container: c.ID}
	if args[1] == "oom" {
		n.Supervisor.OOM(ref, 60<<20, 1, 0)
	} else {
		code, err := strconv.Atoi(args[1])
		ts.Check(err)
		n.Supervisor.Exit(ref, code)
	}
	_, err = n.As(core.OwnerCLI).Wait(ctx, ref)
	ts.Check(err)
}

// healthIs waits until a container's health has a status: health KEY STATUS.
func healthIs(ts *testscript.TestScript, _ bool, args []string) {
	cli := nodeOf(ts).As(core.OwnerCLI)
	is := func() bool {
		c, err := cli.ContainerByKey(context.Background(), core.Key(args[0]))
		return err == nil && c.HealthNow() != nil && c.HealthNow().Status == args[1]
	}
	for e, err := range cli.Events(context.Background(), 0, core.Filter{Kinds: []core.EventKind{core.EventContainerHealth}}) {
		ts.Check(err)
		if string(e.Key) == args[0] && is() {
			return
		}
	}
}

// pushed checks the credentials and the host of the last push: pushed USER HOST.
func pushed(ts *testscript.TestScript, _ bool, args []string) {
	if o := nodeOf(ts).Images.Pushed(); o.Username != args[0] || o.Host != args[1] {
		ts.Fatalf("pushed with the credentials of %q for %q, want %q for %q", o.Username, o.Host, args[0], args[1])
	}
}

// foreign makes a running container of owner cri: foreign KEY.
func foreign(ts *testscript.TestScript, _ bool, args []string) {
	n := nodeOf(ts)
	ctx := context.Background()
	img, err := n.As(core.OwnerCRI).Images.Get(ctx, "busybox")
	ts.Check(err)
	sb, err := n.As(core.OwnerCRI).CreateSandbox(ctx, core.SandboxConfig{Key: "pod"})
	ts.Check(err)
	c, err := n.As(core.OwnerCRI).CreateContainer(ctx, core.ContainerConfig{
		Key: core.Key(args[0]), Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sh"),
	})
	ts.Check(err)
	ts.Check(n.As(core.OwnerCRI).StartContainer(ctx, c.ID))
}
