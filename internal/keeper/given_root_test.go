package keeper_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// givenPlan is a plan that puts n given descriptors at 3 and on, parks, and becomes a shell.
func givenPlan(n int, script string) []byte {
	b := &plan.Builder{}
	b.Give(n)
	for i := range 3 {
		b.Add("stream", unix.SYS_DUP3, plan.S(plan.Slot(plan.SlotStdin+i)), plan.V(i), plan.V(0))
	}
	for i := range n {
		b.Add("given", unix.SYS_DUP3, plan.S(plan.Slot(plan.SlotGiven+i)), plan.V(3+i), plan.V(0))
	}
	park(b)
	b.Add("exec", unix.SYS_EXECVE, plan.P(b.String("/bin/busybox")), plan.P(b.Strings([]string{"sh", "-c", script})), plan.P(b.Strings(nil)))
	return b.Encode()
}

// openFiles counts a process's descriptors by their targets.
func openFiles(t *testing.T, pid int) map[string]int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, f := range entries {
		if link, err := os.Readlink(dir + "/" + f.Name()); err == nil {
			n[link]++
		}
	}
	return n
}

// numbered are n files, each with its number in it.
func numbered(t *testing.T, n int) (files []*os.File) {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		name := dir + "/given" + strconv.Itoa(i)
		if err := os.WriteFile(name, []byte(strconv.Itoa(i)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	return files
}

func givenOpen(t *testing.T, pid int) (n int) {
	t.Helper()
	for name, count := range openFiles(t, pid) {
		if strings.Contains(name, "/given") {
			n += count
		}
	}
	return n
}

// TestAProgramGetsItsDescriptors: as many as are possible, in their order, and keeper and nest
// hold none of them once the child has them. The child keeps them when both have died.
func TestAProgramGetsItsDescriptors(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		const most = plan.MaxGiven
		script := "i=3; while [ $i -lt " + strconv.Itoa(3+most) + " ]; do read x <&$i; echo $x; i=$((i+1)); done; ls -l /proc/self/fd 2>/dev/null | grep -c /given"
		log := e.file("out")
		ref := core.Ref{Container: "c"}
		l := core.PlanLaunch{
			Launch: core.Launch{Ref: ref, IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}},
			Plan:   givenPlan(most, script), Given: numbered(t, most), Park: true,
		}
		if _, err := e.c.LaunchPlan(e.ctx(), l); err != nil {
			t.Fatal(err)
		}
		st := e.status()
		for name, pid := range map[string]int{"keeper": st.KeeperPid, "nest": st.NestPid} {
			if n := givenOpen(t, pid); n > 0 {
				t.Errorf("the %s holds %d of the descriptors", name, n)
			}
		}
		for _, f := range l.Given { // as if the agent died
			_ = f.Close()
		}
		killAndWait(t, st.KeeperPid)
		e.status()
		if err := e.c.Release(e.ctx(), ref); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(ref); x.Exit.Code != 0 {
			t.Errorf("%+v", x)
		}
		want := ""
		for i := range most {
			want += strconv.Itoa(i) + "\n"
		}
		if got := read(t, log); got != want+strconv.Itoa(most)+"\n" {
			t.Errorf("it read %q", got)
		}
	})
}

// TestDescriptorsThatDoNotFitAreRefused: and none of them stays open in the keeper, as none does
// after a launch that fails later.
func TestDescriptorsThatDoNotFitAreRefused(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		files := numbered(t, plan.MaxGiven+1)
		launch := func(name string, blob []byte, given []*os.File) error {
			_, err := e.c.LaunchPlan(e.ctx(), core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: core.ID(name)}}, Plan: blob, Given: given})
			return err
		}
		bad := &plan.Builder{}
		bad.Give(2)
		bad.Add("a step that fails", unix.SYS_CLOSE, plan.V(1<<20))
		for name, c := range map[string]struct {
			blob  []byte
			given []*os.File
			class func(error) bool
		}{
			"fewer than the plan gives":  {givenPlan(3, "true"), files[:2], errdefs.IsInvalidArgument},
			"more than the plan gives":   {givenPlan(1, "true"), files[:2], errdefs.IsInvalidArgument},
			"none of what the plan says": {givenPlan(1, "true"), nil, errdefs.IsInvalidArgument},
			"a plan that gives none":     {shellPlan("true"), files[:1], errdefs.IsInvalidArgument},
			"too many":                   {shellPlan("true"), files, errdefs.IsInvalidArgument},
			"a step that fails":          {bad.Encode(), files[:2], errdefs.IsInternal},
		} {
			if err := launch(name, c.blob, c.given); !c.class(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := e.c.RunPlan(e.ctx(), core.PlannedCommand{Plan: givenPlan(1, "true")}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a task: %v", err)
		}
		st := e.status()
		if n := givenOpen(t, st.KeeperPid); n > 0 || st.Processes != 0 {
			t.Errorf("the keeper holds %d of the descriptors, %+v", n, st)
		}
	})
}

// TestAKeeperOfVersion2: it gets plans in its own format, and a launch that it cannot carry out is
// refused here, by name.
func TestAKeeperOfVersion2(t *testing.T) {
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
		got := make(chan []byte, 1)
		go func() {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			b, oob := make([]byte, wire.MaxFrame), make([]byte, 128)
			_, _ = c.Read(b)
			_, _ = c.Write(wire.Frame(wire.KindOK, 0, &wire.Hello{Magic: wire.Magic, Version: 2, Oldest: 1}))
			n, on, _, _, _ := c.ReadMsgUnix(b, oob)
			h, _, _ := wire.ParseHeader(b[:n])
			if msgs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(msgs) == 1 && h.Kind == wire.KindLaunchPlan {
				if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
					f := os.NewFile(uintptr(fds[0]), "plan")
					blob, _ := io.ReadAll(io.NewSectionReader(f, 0, plan.MaxSize))
					_ = f.Close()
					got <- blob
				}
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
		want, err := plan.ToVersion2(blob)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := k.LaunchPlan(t.Context(), core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: "c"}}, Plan: blob, Park: true}); err != nil || out.Pid != 77 {
			t.Errorf("%+v %v", out, err)
		}
		if b := <-got; string(b) != string(want) {
			t.Errorf("it got %d bytes, want %d of version 2", len(b), len(want))
		}
		_, err = k.LaunchPlan(t.Context(), core.PlanLaunch{Launch: core.Launch{Ref: core.Ref{Container: "d"}}, Plan: givenPlan(1, "true"), Given: numbered(t, 1)})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("%v", err)
		}
	})
}

// TestAClientOfVersion2LaunchesItsPlan: the plan is in the format of its version.
func TestAClientOfVersion2LaunchesItsPlan(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		old, err := plan.ToVersion2(shellPlan("exit 6"))
		if err != nil {
			t.Fatal(err)
		}
		m := &wire.Launch{Kind: wire.LaunchPlan, Ref: wire.Ref{Container: "old"}}
		if h, f := ask(t, greeted(t, e, 2), wire.Frame(wire.KindLaunchPlan, 7, m), memfd(t, old, allSeals)); h.Kind != wire.KindOK {
			t.Fatalf("%+v %+v", h, f)
		}
		if x := e.exit(core.Ref{Container: "old"}); x.Exit.Code != 6 {
			t.Errorf("%+v", x)
		}
	})
}
