package keeper_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
)

// dialRaw connects without a hello.
func dialRaw(t *testing.T, e *env) *net.UnixConn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(e.ctx(), "unixpacket", e.file("pair-1/keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(roottest.Patience()))
	return c.(*net.UnixConn)
}

func exchange(t *testing.T, c *net.UnixConn, frame []byte) (wire.Header, []byte, error) {
	t.Helper()
	if _, err := c.Write(frame); err != nil {
		return wire.Header{}, nil, err
	}
	b := make([]byte, wire.MaxFrame)
	n, err := c.Read(b)
	if err != nil || n == 0 {
		return wire.Header{}, nil, errors.Join(err, net.ErrClosed)
	}
	h, body, ok := wire.ParseHeader(b[:n])
	if !ok {
		t.Fatalf("answer %x", b[:n])
	}
	return h, body, nil
}

func TestProtocolVersions(t *testing.T) {
	golden, err := filepath.Abs("wire/testdata/v1/hello")
	if err != nil {
		t.Fatal(err)
	}
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		// The hello that version 1 sent is still answered.
		old, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		c := dialRaw(t, e)
		h, body, err := exchange(t, c, old)
		var hello wire.Hello
		if err != nil || h.Kind != wire.KindOK || !wire.Unmarshal(body, &hello) || hello.Version < 1 || hello.Oldest > 1 {
			t.Fatalf("%+v %+v %v", h, hello, err)
		}
		// One that is too new is refused by a text with both versions.
		h, body, err = exchange(t, dialRaw(t, e), wire.Frame(wire.KindHello, 5, &wire.Hello{Magic: wire.Magic, Version: 99, Oldest: 98}))
		var f wire.Fail
		if err != nil || h.Kind != wire.KindFail || h.ID != 5 || !wire.Unmarshal(body, &f) ||
			!strings.Contains(f.Text, "versions 1 to 5") || !strings.Contains(f.Text, "98 to 99") {
			t.Errorf("%+v %+v %v", h, f, err)
		}
		// A keeper that is too new for us: the client says so and touches nothing.
		dir := e.file("future")
		if err := os.MkdirAll(dir+"/pair-1", 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: dir + "/pair-1/keeper.sock"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			_, _ = c.Read(b)
			_, _ = c.Write(wire.Frame(wire.KindOK, 0, &wire.Hello{Magic: wire.Magic, Version: 7, Oldest: 6}))
		}()
		_, err = keeper.New(e.ctx(), keeper.Options{StateDir: dir, Binary: e.binary})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "versions 1 to 5") || !strings.Contains(err.Error(), "6 to 7") {
			t.Errorf("New: %v", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 { // pair-1 and the lock
			t.Errorf("%v %v", entries, err)
		}
	})
}

func TestAPairThatIsStartedIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		var told [][2]int
		o := keeper.Options{StateDir: e.file("told"), Binary: e.binary, Started: func(_ context.Context, keeper, nest int) {
			told = append(told, [2]int{keeper, nest})
		}}
		for range 2 { // the second finds the pair of the first
			c, err := keeper.New(e.ctx(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			st, err := c.Status(e.ctx())
			if err != nil || len(told) != 1 || told[0] != [2]int{st.KeeperPid, st.NestPid} {
				t.Fatalf("told of %v, status %+v, %v", told, st, err)
			}
			defer func() { _ = c.Shutdown(e.ctx()) }()
		}
	})
}

func TestNonsenseHarmsNobody(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		pid := e.status().KeeperPid
		hello := wire.Frame(wire.KindHello, 0, &wire.Hello{Magic: wire.Magic, Version: 1, Oldest: 1})
		for _, frame := range [][]byte{{0}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 12), make([]byte, 4000), wire.Frame(wire.KindLaunch, 1, &wire.Launch{}), wire.Frame(wire.KindHello, 1, nil)} {
			if _, _, err := exchange(t, dialRaw(t, e), frame); err == nil {
				t.Errorf("%.20q was answered", frame)
			}
		}
		for kind := range 256 {
			for _, body := range [][]byte{nil, {0xff}, {0xff, 0xff, 0xff, 0xff, 0x0f}, make([]byte, 100)} {
				if k := wire.Kind(kind); k == wire.KindExits || k == wire.KindShutdown && len(body) == 0 {
					continue
				}
				c := dialRaw(t, e)
				if _, _, err := exchange(t, c, hello); err != nil {
					t.Fatal(err)
				}
				frame := append(wire.Header{Kind: wire.Kind(kind), ID: 3}.Append(nil), body...)
				h, _, err := exchange(t, c, frame)
				if err != nil || h.ID != 3 {
					t.Errorf("kind %d, body %x: %+v %v", kind, body, h, err)
				}
				// A frame that claims a body in a memory file and has none.
				binary.LittleEndian.PutUint32(frame, uint32(kind)|wire.FlagMemfd<<8)
				if _, _, err := exchange(t, c, frame); err == nil {
					t.Errorf("kind %d without its memory file was answered", kind)
				}
				_ = c.Close()
			}
		}
		if st := e.status(); st.KeeperPid != pid || st.Processes != 0 {
			t.Errorf("status %+v, the keeper was %d", st, pid)
		}
	})
}

func TestLongCommandsAndAnswers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		long := strings.Repeat("x", 100<<10)
		r := e.mustRun(core.Command{Args: []string{"/bin/busybox", "printf", "%s", long}})
		if string(r.Stdout) != long {
			t.Errorf("%d bytes", len(r.Stdout))
		}
		r = e.mustRun(core.Command{Args: []string{"/bin/busybox", "sh", "-c", "busybox dd if=/dev/zero bs=1M count=3; echo; exec busybox seq 1 2000 >&2"}})
		if len(r.Stdout) != 1<<20 || len(r.Stderr) != 4096 || !strings.HasSuffix(r.Stderr, "\n2000\n") {
			t.Errorf("%d bytes out, %d bytes err, %q", len(r.Stdout), len(r.Stderr), r.Stderr)
		}
		r, err := e.c.Run(e.ctx(), core.Command{Args: []string{"/bin/busybox", "sh", "-c", "pwd; env; exit 3"}, Env: []string{"A=1"}, Dir: "/usr"})
		if err != nil || r.Status != 3 || !strings.HasPrefix(string(r.Stdout), "/usr\n") || !strings.Contains(string(r.Stdout), "A=1\n") || strings.Contains(string(r.Stdout), "GOGC") {
			t.Errorf("%+v %v", r, err)
		}
		r, err = e.c.Run(e.ctx(), core.Command{Args: []string{"/bin/busybox", "sh", "-c", "kill -9 $$"}})
		if err != nil || r.Status != 137 {
			t.Errorf("%+v %v", r, err)
		}
		if _, err := e.c.Run(e.ctx(), core.Command{Args: []string{"relative"}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v", err)
		}
	})
}

func TestCancelKillsTheCommand(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		for _, name := range []string{"run", "launch"} {
			ctx, cancel := context.WithCancel(e.ctx())
			fifo := e.file(name)
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := core.Command{Args: []string{"/bin/busybox", "sh", "-c", "exec busybox sleep 1000 >" + fifo}}
			done := make(chan error, 1)
			go func() {
				var err error
				if name == "run" {
					_, err = e.c.Run(ctx, cmd)
				} else {
					_, err = e.c.LaunchCommand(ctx, core.CommandLaunch{Launch: core.Launch{Ref: core.Ref{Container: "x"}}, Command: cmd, PidFile: e.file("nopid")})
				}
				done <- err
			}()
			f, err := os.Open(fifo) // until it runs
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
			if n, err := f.Read(make([]byte, 1)); n != 0 || err == nil { // ends with the command
				t.Errorf("%s: read %d, %v", name, n, err)
			}
			_ = f.Close()
		}
		l := e.shell("x", "exit 0") // the name is free again
		for {
			_, err := e.c.LaunchCommand(e.ctx(), l)
			if err == nil {
				break
			}
			if !errdefs.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
		e.exit(l.Ref)
	})
}

func TestManyAtOnce(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		const n = 100
		var refs []core.Ref
		errs := make(chan error, n)
		for i := range n {
			l := e.shell(fmt.Sprintf("m%d", i), fmt.Sprintf("exit %d", i))
			refs = append(refs, l.Ref)
			go func() {
				_, err := e.c.LaunchCommand(e.ctx(), l)
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		got := e.exits(refs...)
		for i, r := range refs {
			if got[r].Exit.Code != i || got[r].Exit.Signal != 0 {
				t.Errorf("%v: %+v", r, got[r].Exit)
			}
		}
	})
}

func TestHiddenUnifiedIsOnlyHiddenThere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat("/sys/fs/cgroup/unified/cgroup.procs"); err != nil {
			t.Skip("no hybrid cgroups here")
		}
		e := newEnv(t)
		cmd := core.Command{Args: []string{"/bin/busybox", "ls", "/sys/fs/cgroup/unified"}}
		for i := range 3 {
			cmd.HideUnified = true
			made := core.Command{HideUnified: true, Args: []string{"/bin/busybox", "mkdir", fmt.Sprintf("/sys/fs/cgroup/unified/made-%d", i)}}
			e.mustRun(made)
			if r := e.mustRun(cmd); len(r.Stdout) != 0 {
				t.Errorf("it is seen: %s", r.Stdout)
			}
			cmd.HideUnified = false
			if r := e.mustRun(cmd); !strings.Contains(string(r.Stdout), "cgroup.procs") {
				t.Errorf("it is gone: %s", r.Stdout)
			}
		}
		if _, err := os.Stat("/sys/fs/cgroup/unified/cgroup.procs"); err != nil {
			t.Error(err)
		}
	})
}
