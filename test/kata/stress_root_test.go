package kata

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// stressEnv asks for the whole form of these tests: make e2e-kata-stress. CI runs a short one.
const stressEnv = "LONGSHORE_KATA_STRESS"

func whole() bool { return os.Getenv(stressEnv) != "" }

// TestAGigabyteOfStreams: all data of WriteStdin to cat comes back by ReadStdout, and neither
// agent nor keeper grows with it.
func TestAGigabyteOfStreams(t *testing.T) {
	size := int64(32 << 20)
	if whole() {
		size = 1 << 30
	}
	const room = 16 << 10 // KiB that the peak may be above the start
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		a.run(t, "cat", a.spec("exec cat"))
		pids := []int{theKeeper(t), a.cmd.Process.Pid}
		before := peak(t, pids)
		var wrote, read [sha256.Size]byte
		group, ctx := errgroup.WithContext(t.Context())
		group.Go(func() (err error) {
			wrote, err = a.writeAll(ctx, "cat", size)
			return err
		})
		var got int64
		group.Go(func() (err error) {
			read, got, err = a.readAll(ctx, "cat")
			return err
		})
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if got != size || read != wrote {
			t.Errorf("%d bytes of %d came back, the checksums are equal: %t", got, size, read == wrote)
		}
		if s := a.wait(t, "cat", "cat"); s != 0 {
			t.Errorf("status %d", s)
		}
		after := peak(t, pids)
		for i := range pids {
			if after[i]-before[i] > room {
				t.Errorf("process %d has grown from %d to %d KiB", pids[i], before[i], after[i])
			}
		}
		t.Logf("%d MiB; keeper and agent had at most %v KiB, %v before", size>>20, after, before)
		a.remove(t, "cat")
	})
}

// peak is the most memory that each process has had so far, in KiB.
func peak(t *testing.T, pids []int) (all []int64) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); f[0] == "VmHWM:" {
				n, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, n)
			}
		}
	}
	if len(all) != len(pids) {
		t.Fatalf("%d peaks of %d processes", len(all), len(pids))
	}
	return all
}

// writeAll writes bytes that no pattern repeats, in pieces of all sizes, and ends the input.
func (a *agent) writeAll(ctx context.Context, id string, size int64) (sum [sha256.Size]byte, err error) {
	random, hash := rand.NewChaCha8([32]byte{7}), sha256.New()
	buf := make([]byte, 1<<20)
	for left := size; left > 0; {
		part := buf[:min(left, 1+int64(random.Uint64()%uint64(len(buf))))]
		_, _ = random.Read(part) // it has no end
		_, _ = hash.Write(part)
		r, err := a.WriteStdin(ctx, &katav1.WriteStreamRequest{ContainerId: id, ExecId: id, Data: part})
		if err != nil || int(r.GetLen()) != len(part) {
			return sum, fmt.Errorf("WriteStdin of %d: %w, %v", len(part), err, r)
		}
		left -= int64(len(part))
	}
	_, err = a.CloseStdin(ctx, &katav1.CloseStdinRequest{ContainerId: id, ExecId: id})
	return [sha256.Size]byte(hash.Sum(nil)), err
}

func (a *agent) readAll(ctx context.Context, id string) (sum [sha256.Size]byte, n int64, err error) {
	hash := sha256.New()
	for {
		r, err := a.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: id, ExecId: id, Len: 1 << 20})
		if err != nil {
			return sum, n, fmt.Errorf("ReadStdout after %d bytes: %w", n, err)
		}
		if len(r.GetData()) == 0 {
			return [sha256.Size]byte(hash.Sum(nil)), n, nil
		}
		_, _ = hash.Write(r.GetData())
		n += int64(len(r.GetData()))
	}
}

// TestAnExecStorm: execs in many containers at once each have their own output and status,
// and nothing of them is left.
func TestAnExecStorm(t *testing.T) {
	containers, execs := 10, 5
	if whole() {
		containers, execs = 100, 20
	}
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		for i := range containers {
			a.run(t, "storm-"+strconv.Itoa(i), a.spec("exec sleep 100000"))
		}
		group, ctx := errgroup.WithContext(t.Context())
		for i := range containers {
			group.Go(func() error {
				for e := range execs {
					if err := a.oneOfTheStorm(ctx, "storm-"+strconv.Itoa(i), e); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		for i := range containers {
			a.end(t, "storm-"+strconv.Itoa(i))
		}
		if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), a.state+"/runtime/") {
			t.Errorf("mounts are left: %v\n%s", err, b)
		}
	})
}

func (a *agent) oneOfTheStorm(ctx context.Context, id string, n int) error {
	exec, want := "exec-"+strconv.Itoa(n), int32(n%200)
	script := fmt.Sprintf("echo %s %s; echo no >&2; exit %d", id, exec, want)
	if _, err := a.ExecProcess(ctx, &katav1.ExecProcessRequest{ContainerId: id, ExecId: exec, Process: a.spec(script).GetProcess()}); err != nil {
		return fmt.Errorf("ExecProcess: %w", err)
	}
	for _, s := range []struct {
		want string
		read func(context.Context, *katav1.ReadStreamRequest) (*katav1.ReadStreamResponse, error)
	}{{id + " " + exec + "\n", a.ReadStdout}, {"no\n", a.ReadStderr}} {
		var out []byte
		for {
			r, err := s.read(ctx, &katav1.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: 4096})
			if err != nil {
				return fmt.Errorf("read: %w", err)
			}
			if len(r.GetData()) == 0 {
				break
			}
			out = append(out, r.GetData()...)
		}
		if string(out) != s.want {
			return fmt.Errorf("%s in %s wrote %q, want %q", exec, id, out, s.want)
		}
	}
	r, err := a.WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: id, ExecId: exec})
	if err != nil || r.GetStatus() != want {
		return fmt.Errorf("WaitProcess of %s in %s: %w, status %d, want %d", exec, id, err, r.GetStatus(), want)
	}
	return nil
}

// TestFiftyWaiters: all waiters for one exit get its code, on one connection or on others,
// before it and after it.
func TestFiftyWaiters(t *testing.T) {
	const waiters = 50
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		a.run(t, "one", a.spec("read line; exit 42"))
		group, ctx := errgroup.WithContext(t.Context())
		var asked sync.WaitGroup
		for i := range waiters {
			from := a.AgentServiceService
			if i%2 == 0 {
				from = katav1.NewAgentServiceClient(ttrpc.NewClient(a.dial(t)))
			}
			asked.Add(1)
			group.Go(func() error {
				asked.Done()
				r, err := from.WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: "one", ExecId: "one"})
				if err != nil || r.GetStatus() != 42 {
					return fmt.Errorf("waiter %d: %w, status %d", i, err, r.GetStatus())
				}
				return nil
			})
		}
		asked.Wait()
		if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "one", ExecId: "one", Data: []byte("go\n")}); err != nil {
			t.Fatal(err)
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		if s := a.wait(t, "one", "one"); s != 42 {
			t.Errorf("who asks later gets %d", s)
		}
		a.remove(t, "one")
	})
}

// dial makes one more connection to the agent.
func (a *agent) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: a.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestAProcessThatCannotBeKilled: RemoveContainer says so at its timeout, others work
// meanwhile, and the container can be removed when the process has ended. The process asks for
// a file of a FUSE server that has taken the question and does not answer: the kernel then
// waits without regard to SIGKILL.
func TestAProcessThatCannotBeKilled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		dir := t.TempDir()
		fuse := mountSilent(t, dir)
		spec := a.spec("exec cat /mnt/file")
		spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: "/mnt", Type: "bind", Source: dir, Options: []string{"bind"}})
		a.run(t, "stuck", spec)
		a.run(t, "other", a.spec("exec sleep 100000"))
		select {
		case <-fuse.asked:
		case <-time.After(roottest.Patience()):
			t.Fatal("the container does not ask for the file")
		}
		pid := waitingIn(t, "cat")
		_, err := a.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "stuck", Timeout: 1})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), unix.ETIME.Error()) {
			t.Errorf("RemoveContainer of what cannot be killed: %v", err)
		}
		nodetest.Eventually(t, "the process is in an uninterruptible sleep", func() bool { return stateOf(t, pid) == "D" })
		if out, s := a.exec(t, "other", "e1", "echo on; exit 3"); out != "on\n" || s != 3 {
			t.Errorf("the neighbour: %q, %d", out, s)
		}
		fuse.close(t)
		if _, err := a.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "stuck"}); err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.InvalidArgument {
			t.Errorf("RemoveContainer when it can be killed: %v", err)
		}
		a.end(t, "other")
	})
}

// waitingIn returns the one process of a program that runs here.
func waitingIn(t *testing.T, arg string) int {
	t.Helper()
	pids := nodetest.Processes(arg, "")
	if len(pids) != 1 {
		t.Fatalf("processes of %s: %v", arg, pids)
	}
	return pids[0]
}

// stateOf is the kernel's letter for a process's state.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(b[bytes.LastIndexByte(b, ')')+2])
}

// deaf is a connection that reads nothing.
type deaf struct {
	net.Conn
	closed chan struct{}
}

func (d deaf) Read([]byte) (int, error) {
	<-d.closed
	return 0, io.EOF
}

// TestAReaderThatDiesBlocksNobody: the agent answers others while one client asks for output
// and never reads the answers, and another one, which is gone, waits for output that does not
// come. Others can read the rest of the first one's stream.
func TestAReaderThatDiesBlocksNobody(t *testing.T) {
	const questions = 64
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		a.run(t, "flood", a.spec("exec yes"))
		a.run(t, "quiet", a.spec("exec sleep 100000"))
		conn := deaf{Conn: a.dial(t), closed: make(chan struct{})}
		listening := ttrpc.NewClient(conn)
		defer func() { _ = listening.Close() }()
		ctx, stop := context.WithCancel(t.Context())
		var asked sync.WaitGroup
		for range questions {
			asked.Go(func() {
				_, _ = katav1.NewAgentServiceClient(listening).ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: "flood", ExecId: "flood", Len: 1 << 20}) // it is not answered
			})
		}
		gone := ttrpc.NewClient(a.dial(t))
		asked.Go(func() {
			_, _ = katav1.NewAgentServiceClient(gone).ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: "quiet", ExecId: "quiet", Len: 1}) // nothing comes
		})
		// The agent is stuck with the answers to the first when its socket is full.
		nodetest.Eventually(t, "the answers that nobody reads fill a socket", func() bool {
			n, err := unread(conn.Conn)
			return err == nil && n > 64<<10
		})
		_ = gone.Close()
		for i := range 10 {
			if out, s := a.exec(t, "quiet", "exec-"+strconv.Itoa(i), "echo on; exit 3"); out != "on\n" || s != 3 {
				t.Errorf("the neighbour: %q, %d", out, s)
			}
			r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "flood", ExecId: "flood", Len: 4096})
			if err != nil || !bytes.Contains(r.GetData(), []byte("y\ny\n")) {
				t.Errorf("the same stream: %q, %v", r.GetData(), err)
			}
		}
		stop()
		close(conn.closed)
		asked.Wait()
		a.end(t, "flood")
		a.end(t, "quiet")
	})
}

// unread is the number of bytes waiting on a connection.
func unread(conn net.Conn) (n int, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n, errors.Join(err, cerr)
}

// TestTheKeeperIsKilledUnderLoad: while streams run and processes end the keeper is killed
// again and again. No byte and no exit is lost.
func TestTheKeeperIsKilledUnderLoad(t *testing.T) {
	kills, ends, size := 3, 10, int64(16<<20)
	if whole() {
		kills, ends, size = 20, 50, 256<<20
	}
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		a.run(t, "cat", a.spec("exec cat"))
		group, ctx := errgroup.WithContext(t.Context())
		for i := range ends {
			id := "end-" + strconv.Itoa(i)
			a.run(t, id, a.spec(fmt.Sprintf("read line; echo %s; exit %d", id, i)))
		}
		var wrote, read [sha256.Size]byte
		var got int64
		group.Go(func() (err error) {
			wrote, err = a.writeAll(ctx, "cat", size)
			return err
		})
		group.Go(func() (err error) {
			read, got, err = a.readAll(ctx, "cat")
			return err
		})
		for k := range kills {
			for i := k * ends / kills; i < (k+1)*ends/kills; i++ {
				group.Go(func() error { return a.endsWith(ctx, "end-"+strconv.Itoa(i), int32(i)) })
			}
			old := theKeeper(t)
			if err := unix.Kill(old, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			nodetest.Eventually(t, "there is a new keeper", func() bool { return theKeeper(t) != old })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if got != size || read != wrote {
			t.Errorf("%d bytes of %d came back, the checksums are equal: %t", got, size, read == wrote)
		}
		if s := a.wait(t, "cat", "cat"); s != 0 {
			t.Errorf("status %d", s)
		}
		a.remove(t, "cat")
		for i := range ends {
			a.remove(t, "end-"+strconv.Itoa(i))
		}
	})
}

// theKeeper waits for the nest's one child that is a keeper. The keeper's own children are
// like it until they execute a container's program.
func theKeeper(t *testing.T) (pid int) {
	t.Helper()
	nodetest.Eventually(t, "the nest has a keeper", func() bool {
		var own []int
		nests := nodetest.Pair("nest")
		for _, p := range nodetest.Pair("keeper") {
			if parent, err := parentOf(p); err == nil && slices.Contains(nests, parent) {
				own = append(own, p)
			}
		}
		if len(own) == 1 {
			pid = own[0]
		}
		return len(own) == 1
	})
	return pid
}

func parentOf(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if f[0] == "Z" {
		return 0, errors.New("it has ended")
	}
	return strconv.Atoi(f[1])
}

// endsWith lets a container end, and waits for its output and its status.
func (a *agent) endsWith(ctx context.Context, id string, want int32) error {
	if _, err := a.WriteStdin(ctx, &katav1.WriteStreamRequest{ContainerId: id, ExecId: id, Data: []byte("go\n")}); err != nil {
		return fmt.Errorf("WriteStdin: %w", err)
	}
	out, err := a.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: id, ExecId: id, Len: 100})
	if err != nil || string(out.GetData()) != id+"\n" {
		return fmt.Errorf("%s wrote %q, %w", id, out.GetData(), err)
	}
	r, err := a.WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: id, ExecId: id})
	if err != nil || r.GetStatus() != want {
		return fmt.Errorf("%s ended with %d, want %d: %w", id, r.GetStatus(), want, err)
	}
	return nil
}
