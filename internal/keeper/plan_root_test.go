package keeper_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// shellPlan parks once and becomes a shell with the given script.
func shellPlan(script string) []byte {
	b := &plan.Builder{}
	for i := range 3 {
		b.Add("stream", unix.SYS_DUP3, plan.S(plan.Slot(plan.SlotStdin+i)), plan.V(i), plan.V(0))
	}
	park(b)
	b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/busybox")), plan.P(b.Strings([]string{"sh", "-c", script})), plan.P(b.Strings(nil)))
	return b.Encode()
}

func park(b *plan.Builder) {
	b.Add("say that we are parked", unix.SYS_WRITE, plan.S(plan.SlotError), plan.P(b.Words(plan.StepParked)), plan.V(8)).Result(8)
	b.Add("wait", unix.SYS_READ, plan.S(plan.SlotPark), plan.P(b.Words(0)), plan.V(1)).Result(1)
}

func version1(t *testing.T, blob []byte) []byte {
	t.Helper()
	old, err := plan.ToVersion1(blob)
	if err != nil {
		t.Fatal(err)
	}
	return old
}

// memfd is a memory file with the given seals.
func memfd(t *testing.T, b []byte, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.Pwrite(fd, b, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// greeted is a raw connection after a hello with version.
func greeted(t *testing.T, e *env, version uint64) *net.UnixConn {
	t.Helper()
	c := dialRaw(t, e)
	if h, _, err := exchange(t, c, wire.Frame(wire.KindHello, 0, &wire.Hello{Magic: wire.Magic, Version: version, Oldest: 1})); err != nil || h.Kind != wire.KindOK {
		t.Fatalf("%+v %v", h, err)
	}
	return c
}

// ask sends a frame with descriptors and reads the answer.
func ask(t *testing.T, c *net.UnixConn, frame []byte, fds ...int) (wire.Header, wire.Fail) {
	t.Helper()
	if _, _, err := c.WriteMsgUnix(frame, syscall.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, wire.MaxFrame)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	h, body, ok := wire.ParseHeader(b[:n])
	var f wire.Fail
	if !ok || h.Kind == wire.KindFail && !wire.Unmarshal(body, &f) {
		t.Fatalf("answer %x", b[:n])
	}
	return h, f
}

const allSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// TestAPlanMustBeSealedAndWhole: a plan in a file that could still change, or with other bytes than
// the agent's, never comes to a fork.
func TestAPlanMustBeSealedAndWhole(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		c := greeted(t, e, 2)
		good := shellPlan("exit 5")
		damaged := append([]byte(nil), good...)
		damaged[len(damaged)/2] ^= 1
		launch := wire.Frame(wire.KindLaunchPlan, 7, &wire.Launch{Kind: wire.LaunchPlan, Ref: wire.Ref{Container: "p"}})
		task := wire.Frame(wire.KindTask, 7, &wire.Task{Planned: true})
		file, err := os.Open("/bin/busybox")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		for name, bad := range map[string]struct {
			fds  []int
			text string
		}{
			"no file":         {nil, "not sealed"},
			"no seals":        {[]int{memfd(t, good, 0)}, "not sealed"},
			"may be written":  {[]int{memfd(t, good, allSeals&^unix.F_SEAL_WRITE)}, "not sealed"},
			"may grow":        {[]int{memfd(t, good, allSeals&^unix.F_SEAL_GROW)}, "not sealed"},
			"may shrink":      {[]int{memfd(t, good, allSeals&^unix.F_SEAL_SHRINK)}, "not sealed"},
			"may be unsealed": {[]int{memfd(t, good, allSeals&^unix.F_SEAL_SEAL)}, "not sealed"},
			"a file on disk":  {[]int{int(file.Fd())}, "not sealed"},
			"empty":           {[]int{memfd(t, nil, allSeals)}, "too short"},
			"too long":        {[]int{memfd(t, make([]byte, plan.MaxSize+1), allSeals)}, "too large"},
			"cut short":       {[]int{memfd(t, good[:len(good)-8], allSeals)}, "plan"},
			"longer":          {[]int{memfd(t, append(good, 0, 0, 0, 0, 0, 0, 0, 0), allSeals)}, "plan"},
			"damaged":         {[]int{memfd(t, damaged, allSeals)}, "damaged"},
		} {
			for _, frame := range [][]byte{launch, task} {
				if h, f := ask(t, c, frame, bad.fds...); h.Kind != wire.KindFail || f.Class != wire.InvalidArgument || !strings.Contains(f.Text, bad.text) {
					t.Errorf("%s: %+v %+v", name, h, f)
				}
			}
		}
		if st := e.status(); st.Processes != 0 {
			t.Errorf("status %+v", st)
		}
		if h, f := ask(t, c, launch, memfd(t, good, allSeals)); h.Kind != wire.KindOK {
			t.Errorf("%+v %+v", h, f)
		}
		ref := core.Ref{Container: "p"}
		if x := e.exit(ref); x.Exit.Code != 5 {
			t.Errorf("%+v", x)
		}
	})
}

// TestAClientOfVersion1LaunchesItsPlan: its plan stands in the message.
func TestAClientOfVersion1LaunchesItsPlan(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		m := &wire.Launch{Kind: wire.LaunchPlan, Ref: wire.Ref{Container: "old"}, Plan: version1(t, shellPlan("exit 6"))}
		if h, f := ask(t, greeted(t, e, 1), wire.Frame(wire.KindLaunch, 7, m)); h.Kind != wire.KindOK {
			t.Fatalf("%+v %+v", h, f)
		}
		if x := e.exit(core.Ref{Container: "old"}); x.Exit.Code != 6 {
			t.Errorf("%+v", x)
		}
	})
}

// TestAKeeperOfVersion1GetsWhatItKnows: an old keeper gets the plan inside the message,
// and no request that it does not know.
func TestAKeeperOfVersion1GetsWhatItKnows(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(dir+"/pair-1", 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: dir + "/pair-1/keeper.sock"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		got := make(chan wire.Launch, 1)
		go func() {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			b := make([]byte, wire.MaxFrame)
			_, _ = c.Read(b)
			_, _ = c.Write(wire.Frame(wire.KindOK, 0, &wire.Hello{Magic: wire.Magic, Version: 1, Oldest: 1}))
			n, _ := c.Read(b)
			h, body, _ := wire.ParseHeader(b[:n])
			var m wire.Launch
			if h.Kind == wire.KindLaunch && wire.Unmarshal(body, &m) {
				got <- m
			}
			_, _ = c.Write(wire.Frame(wire.KindOK, h.ID, &wire.Launched{Pid: 77}))
			_, _ = c.Read(b)
		}()
		k, err := keeper.New(t.Context(), keeper.Options{StateDir: dir, Binary: "/nowhere"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = k.Close() }()
		blob := shellPlan("true")
		if out, err := k.LaunchPlan(t.Context(), core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: "c"}}, Plan: blob, Park: true}); err != nil || out.Pid != 77 {
			t.Errorf("%+v %v", out, err)
		}
		if m := <-got; string(m.Plan) != string(version1(t, blob)) || !m.Park {
			t.Errorf("%+v", m)
		}
		_, withStdin := k.Run(t.Context(), core.Command{Args: []string{"/bin/true"}, Stdin: []byte("x")})
		_, byPlan := k.RunPlan(t.Context(), core.PlannedCommand{Plan: blob})
		for name, err := range map[string]error{"stdin": withStdin, "plan": byPlan} {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "version 1") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := k.Advance(t.Context(), core.Ref{Container: "c"}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("advance: %v", err)
		}
	})
}

func TestTasks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		r := e.mustRun(core.Command{Path: "/bin/busybox", Args: []string{"sh", "-c", "cat; echo $0 $A"}, Env: []string{"A=1"}, Stdin: []byte("input ")})
		if string(r.Stdout) != "input sh 1\n" {
			t.Errorf("%q %q", r.Stdout, r.Stderr)
		}
		in := strings.Repeat("much input ", 10<<10)
		if r = e.mustRun(core.Command{Args: []string{"/bin/busybox", "cat"}, Stdin: []byte(in)}); string(r.Stdout) != in {
			t.Errorf("%d bytes of %d", len(r.Stdout), len(in))
		}
		plain := func(end func(*plan.Builder)) []byte {
			b := &plan.Builder{}
			for i := range 3 {
				b.Add("stream", unix.SYS_DUP3, plan.S(plan.Slot(plan.SlotStdin+i)), plan.V(i), plan.V(0))
			}
			end(b)
			b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/busybox")), plan.P(b.Strings([]string{"sh", "-c", "cat; echo err >&2; exit 4"})), plan.P(b.Strings(nil)))
			return b.Encode()
		}
		r, err := e.c.RunPlan(e.ctx(), core.PlannedCommand{Plan: plain(func(*plan.Builder) {}), Stdin: []byte("in")})
		if err != nil || r.Status != 4 || string(r.Stdout) != "in" || r.Stderr != "err\n" {
			t.Errorf("%+v %v", r, err)
		}
		_, err = e.c.RunPlan(e.ctx(), core.PlannedCommand{Plan: plain(func(b *plan.Builder) {
			b.Add("chdir to the moon", unix.SYS_CHDIR, plan.P(b.String("/moon")))
		})})
		if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "chdir to the moon: no such file") {
			t.Errorf("%v", err)
		}
		_, err = e.c.RunPlan(e.ctx(), core.PlannedCommand{Plan: plain(func(*plan.Builder) {}), Target: core.Ref{Container: "nobody"}})
		if !errdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		if _, err := e.c.Run(e.ctx(), core.Command{Path: "relative", Stdin: []byte{1}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestAHungPlanIsCancelledAndItsStepNamed: a child that opens a FIFO nobody
// writes to would wait for ever.
func TestAHungPlanIsCancelledAndItsStepNamed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		hang, told := e.file("hang"), e.file("told")
		for _, f := range []string{hang, told} {
			if err := unix.Mkfifo(f, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b := &plan.Builder{}
		open := func(name, file string, how int) {
			b.Add(name, unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(b.String(file)), plan.V(how))
		}
		open("tell", told, unix.O_WRONLY)
		open("open the FIFO", hang, unix.O_RDONLY)
		park(b)
		blob := b.Encode()
		for name, start := range map[string]func(context.Context) error{
			"launch": func(ctx context.Context) error {
				_, err := e.c.LaunchPlan(ctx, core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: "h"}}, Plan: blob, Park: true})
				return err
			},
			"task": func(ctx context.Context) error {
				_, err := e.c.RunPlan(ctx, core.PlannedCommand{Plan: blob})
				return err
			},
		} {
			ctx, cancel := context.WithCancel(e.ctx())
			done := make(chan error, 1)
			go func() { done <- start(ctx) }()
			f, err := os.Open(told) // until the child runs
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "given up at ") ||
				!strings.HasSuffix(strings.SplitN(err.Error(), "given up at ", 2)[1], "open the FIFO: aborted") && !strings.Contains(err.Error(), "given up at tell") {
				t.Errorf("%s: %v", name, err)
			}
			if n, err := f.Read(make([]byte, 1)); n != 0 || err == nil { // the child is gone
				t.Errorf("%s: read %d, %v", name, n, err)
			}
			_ = f.Close()
		}
		if st := e.status(); st.Processes != 0 {
			t.Errorf("status %+v", st)
		}
		e.mustRun(core.Command{Args: []string{"/bin/busybox", "true"}})
	})
}

// TestAdvance: a child may park more than once, and Release is the last.
func TestAdvance(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		b := &plan.Builder{}
		for i, slot := range []plan.Slot{plan.SlotError, plan.SlotPark} {
			b.Add("pipe", unix.SYS_DUP3, plan.S(slot), plan.V(3+i), plan.V(unix.O_CLOEXEC)).To(slot)
		}
		b.Add("close the keeper's", unix.SYS_CLOSE_RANGE, plan.V(5), plan.V(^uint32(0)), plan.V(0))
		park(b)
		park(b)
		b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/busybox")), plan.P(b.Strings([]string{"true"})), plan.P(b.Strings(nil)))
		ref := core.Ref{Container: "twice"}
		l, err := e.c.LaunchPlan(e.ctx(), core.PlanLaunch{Launch: core.Launch{Ref: ref}, Plan: b.Encode(), Park: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.c.Advance(e.ctx(), ref); err != nil {
			t.Fatal(err)
		}
		// The next keeper can let it go too.
		killAndWait(t, e.status().KeeperPid)
		if err := e.c.Release(e.ctx(), ref); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(ref); x.Pid != l.Pid || x.Exit.Code != 0 || x.Exit.Signal != 0 {
			t.Errorf("%+v", x)
		}
		if err := e.c.Release(e.ctx(), ref); err == nil {
			t.Error("released what has ended")
		}
	})
}

// TestAReleaseMayBeAskedForAgain: agent and keeper may die after the first request. The
// program runs once, however often the release is requested.
func TestAReleaseMayBeAskedForAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		gate := e.file("gate")
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		// Between being let go and its program it waits for us at the gate.
		launch := func(name, program string, gated bool) (core.Ref, int) {
			t.Helper()
			b := &plan.Builder{}
			for i, slot := range []plan.Slot{plan.SlotError, plan.SlotPark} {
				b.Add("pipe", unix.SYS_DUP3, plan.S(slot), plan.V(3+i), plan.V(unix.O_CLOEXEC)).To(slot)
			}
			b.Add("stdin", unix.SYS_DUP3, plan.S(plan.SlotStdin), plan.V(0), plan.V(0))
			b.Add("close the keeper's", unix.SYS_CLOSE_RANGE, plan.V(5), plan.V(^uint32(0)), plan.V(0))
			park(b)
			if gated {
				b.Add("gate", unix.SYS_OPENAT, plan.V(unix.AT_FDCWD), plan.P(b.String(gate)), plan.V(unix.O_WRONLY|unix.O_CLOEXEC))
			}
			b.Add("exec "+program, unix.SYS_EXECVE, plan.P(b.String(program)), plan.P(b.Strings([]string{"sh", "-c", "read x"})), plan.P(b.Strings(nil)))
			ref := core.Ref{Container: core.ID(name)}
			l, err := e.c.LaunchPlan(e.ctx(), core.PlanLaunch{Launch: core.Launch{Ref: ref, IO: core.IO{Stdin: core.StdinOpen}}, Plan: b.Encode(), Park: true})
			if err != nil {
				t.Fatal(err)
			}
			return ref, l.Pid
		}
		ref, pid := launch("runs", "/bin/busybox", true)
		answers := make(chan error, 3)
		other := e.client()
		for _, c := range []*keeper.Client{e.c, other, e.c} {
			go func() { answers <- c.Release(e.ctx(), ref) }()
		}
		if b, err := os.ReadFile(gate); err != nil || len(b) > 0 { // until it runs its program, which closes the gate
			t.Fatalf("%q, %v", b, err)
		}
		for range 3 {
			if err := <-answers; err != nil {
				t.Errorf("release: %v", err)
			}
		}
		for _, keeperDies := range []bool{false, true} {
			if keeperDies {
				killAndWait(t, e.status().KeeperPid)
			}
			if err := e.c.Release(e.ctx(), ref); err != nil {
				t.Errorf("released again, keeper killed %v: %v", keeperDies, err)
			}
			if err := e.c.Advance(e.ctx(), ref); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("advanced what runs: %v", err)
			}
		}
		procs, err := e.c.Processes(e.ctx())
		if err != nil || len(procs) != 1 || procs[0].Pid != pid || !procs[0].Running {
			t.Errorf("%+v, %v, want %d, which runs", procs, err, pid)
		}
		if err := e.c.Signal(e.ctx(), ref, int(unix.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		e.exit(ref)
		if err := e.c.Release(e.ctx(), ref); !errors.Is(err, core.ErrEnded) {
			t.Errorf("released what has ended: %v", err)
		}
		// One with a refused program: each call returns the refusal, or that it has ended.
		ref, _ = launch("refused", "/etc/passwd", false)
		var refused *core.StartError
		if err := e.c.Release(e.ctx(), ref); !errors.As(err, &refused) || refused.Errno != unix.EACCES {
			t.Errorf("%v", err)
		}
		if err := e.c.Release(e.ctx(), ref); !errors.Is(err, core.ErrEnded) && !errors.As(err, &refused) {
			t.Errorf("again: %v", err)
		}
		e.exit(ref)
		if err := e.c.Release(e.ctx(), core.Ref{Container: "nobody"}); !errdefs.IsNotFound(err) {
			t.Errorf("released nobody: %v", err)
		}
		// The process of a command is not parked.
		l := e.shell("command", "read x")
		l.IO.Stdin = core.StdinOpen
		e.launch(l)
		if err := e.c.Release(e.ctx(), l.Ref); !errdefs.IsFailedPrecondition(err) || errors.Is(err, core.ErrEnded) {
			t.Errorf("released what a command has launched: %v", err)
		}
	})
}

// TestAChildMayEndAtAnyStep: wherever a child ends in its plan, the launch fails with an
// error, and the next launch works.
func TestAChildMayEndAtAnyStep(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		before := e.status()
		const length = 6
		for name, c := range map[string]struct {
			end  func(*plan.Builder, plan.Slot)
			told bool // by the child itself, which names the step
		}{
			"fails":      {func(b *plan.Builder, _ plan.Slot) { b.Add("bad step", unix.SYS_CLOSE, plan.V(9999)) }, true},
			"is refused": {func(b *plan.Builder, _ plan.Slot) { b.Add("bad step", 0xffff) }, true},
			"faults":     {func(b *plan.Builder, _ plan.Slot) { b.Add("bad step", unix.SYS_CHDIR, plan.V(1)) }, true},
			"exits":      {func(b *plan.Builder, _ plan.Slot) { b.Add("bad step", unix.SYS_EXIT_GROUP, plan.V(3)) }, false},
			"crashes": {func(b *plan.Builder, me plan.Slot) {
				b.Add("bad step", unix.SYS_KILL, plan.S(me), plan.V(int(unix.SIGSEGV)))
			}, false},
			"is killed": {func(b *plan.Builder, me plan.Slot) {
				b.Add("bad step", unix.SYS_KILL, plan.S(me), plan.V(int(unix.SIGKILL)))
			}, false},
		} {
			for at := range length {
				for _, task := range []bool{false, true} {
					b := &plan.Builder{}
					me := b.NewSlot()
					b.Add("getpid", unix.SYS_GETPID).To(me)
					for i := range length {
						if i == at {
							c.end(b, me)
						} else {
							b.Add("good step", unix.SYS_GETPID)
						}
					}
					b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/busybox")), plan.P(b.Strings([]string{"true"})), plan.P(b.Strings(nil)))
					var err error
					var r core.CommandResult
					if task {
						r, err = e.c.RunPlan(e.ctx(), core.PlannedCommand{Plan: b.Encode()})
					} else {
						_, err = e.c.LaunchPlan(e.ctx(), core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: "c"}}, Plan: b.Encode()})
					}
					if err == nil && (!task || c.told || r.Status == 0) || c.told && !strings.Contains(err.Error(), "bad step") {
						t.Errorf("%s at %d, task %v: %+v, %v", name, at, task, r, err)
					}
				}
			}
		}
		after := e.status()
		if after.KeeperPid != before.KeeperPid || after.Processes != 0 {
			t.Errorf("before %+v, after %+v", before, after)
		}
		e.mustRun(core.Command{Args: []string{"/bin/busybox", "true"}})
	})
}
