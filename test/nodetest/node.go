// Package nodetest runs a whole node for a test: the agent's real binary on a
// root and state directory of its own, with a registry on loopback beside it.
// It knows the agent only by its command line and sockets, as a user does.
//
// Use it inside roottest.Run. Start at Start.
package nodetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// Options says how the node is to be.
type Options struct {
	// Config is TOML that follows the node's own configuration, and begins in the section [engine].
	Config string
	// Runtime is engine.runtime; "" is auto.
	Runtime string
	// Dir holds root, state and logs; "" makes a temporary one.
	Dir string
	// Env is added to the environment of the agent and of commands.
	Env []string
	// Bin is the directory of the binaries; "" is that of Bin.
	Bin string
	// NetNS is the path of the network namespace that the agent runs in; "" is the
	// test's own. A namespace has one agent at most.
	NetNS string
}

// Node is one running agent.
type Node struct {
	Dir, Root, State string
	Cgroup           string // the agent's own tree, below the root of each hierarchy
	CRI              runtimeapi.RuntimeServiceClient
	Images           runtimeapi.ImageServiceClient

	t    *testing.T
	opts Options
	bin  string
	cmd  *exec.Cmd
	log  *os.File
}

// Bin returns the directory of the binaries under test, LONGSHORE_BIN.
func Bin(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LONGSHORE_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "longshore")); err != nil {
		t.Fatalf("no binaries to test: %v (make build, or set LONGSHORE_BIN)", err)
	}
	return dir
}

// Weakened returns the directory of the binaries that were built with the tag
// "weakened", LONGSHORE_WEAK_BIN.
func Weakened(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LONGSHORE_WEAK_BIN")
	if dir == "" {
		dir = filepath.Join(Bin(t), "weakened")
	}
	if _, err := os.Stat(filepath.Join(dir, "longshore")); err != nil {
		t.Fatalf("no weakened binaries to test the attacks with: %v (make weakened, or set LONGSHORE_WEAK_BIN)", err)
	}
	return dir
}

// Start runs an agent and waits until it serves.
func Start(t *testing.T, o Options) *Node {
	t.Helper()
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "longshore-node-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		o.Dir = dir
	}
	n := &Node{Dir: o.Dir, Root: filepath.Join(o.Dir, "root"), State: filepath.Join(o.Dir, "run"), t: t, opts: o, bin: o.Bin}
	if n.bin == "" {
		n.bin = Bin(t)
	}
	if err := os.MkdirAll(n.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if o.Runtime == "" {
		o.Runtime = "auto"
	}
	// Cgroups are the whole machine's: another test's agent must not take ours for its
	// predecessor's.
	n.Cgroup = roottest.Cgroup(t)
	config := fmt.Sprintf("[engine]\ncgroup_root = %q\nruntime = %q\n%s", n.Cgroup, o.Runtime, o.Config)
	if err := os.WriteFile(filepath.Join(n.Dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(n.Dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	n.log = log
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent's log, its end:\n%s", n.LogTail(8000))
		}
		_ = log.Close()
	})
	n.dial()
	n.Up()
	t.Cleanup(n.teardown)
	return n
}

// Installed is a node that is installed on this machine, with the paths that the
// agent has by default, and that something else starts and ends. Dir is for logs.
func Installed(t *testing.T) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir(), Root: "/var/lib/longshore", State: "/run/longshore", t: t, bin: "/usr/bin"}
	n.dial()
	return n
}

func (n *Node) dial() {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.State, "cri.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	n.CRI, n.Images = runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
}

// Up starts the agent's process and waits until it answers.
func (n *Node) Up() {
	n.t.Helper()
	n.Launch()
	ctx, cancel := context.WithTimeout(n.t.Context(), roottest.Patience())
	defer cancel()
	for {
		_, err := n.CRI.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return
		}
		// The connection may still be that to the agent's predecessor.
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			n.t.Fatalf("the agent does not serve: %v\n%s", err, n.LogTail(4000))
		}
	}
}

// Launch starts the agent's process without waiting for it to serve.
func (n *Node) Launch() {
	n.t.Helper()
	args := roottest.Inheriting(filepath.Join(n.bin, "longshore"), "agent", "--config", filepath.Join(n.Dir, "config.toml"), "--root", n.Root, "--state", n.State)
	cmd := exec.Command(args[0], args[1:]...) //nolint:forbidigo // it outlives the contexts of subtests
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.Env = append(append(os.Environ(), "TMPDIR="+n.Dir), n.opts.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startIn(n.opts.NetNS, cmd); err != nil {
		n.t.Fatal(err)
	}
	n.cmd = cmd
}

// startIn starts a command in a network namespace; "" is our own.
func startIn(netns string, cmd *exec.Cmd) error {
	if netns == "" {
		return cmd.Start()
	}
	started := make(chan error, 1)
	go func() {
		// The thread stays in the other namespace: it ends with the goroutine that it is
		// locked to.
		runtime.LockOSThread()
		f, err := os.Open(netns)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			_ = f.Close()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// Kill ends the agent with SIGKILL and waits until it is gone.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

// Stop ends the agent with SIGTERM and waits until it is gone.
func (n *Node) Stop() { n.end(syscall.SIGTERM) }

func (n *Node) end(sig syscall.Signal) {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(sig)
	_ = n.cmd.Wait()
	n.cmd = nil
}

// SetEnv replaces the additional variables of the agent's next process and of commands.
func (n *Node) SetEnv(env ...string) { n.opts.Env = env }

// Died waits until the agent has ended of itself and returns how.
func (n *Node) Died() syscall.WaitStatus {
	n.t.Helper()
	ended := make(chan struct{})
	cmd := n.cmd
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	deadline := time.NewTimer(roottest.Patience())
	defer deadline.Stop()
	select {
	case <-ended:
	case <-deadline.C:
		_ = cmd.Process.Kill()
		<-ended
		n.t.Errorf("the agent did not end")
	}
	n.cmd = nil
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ws
}

// Pid is the agent's, 0 when it is down.
func (n *Node) Pid() int {
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// teardown removes the remaining objects of the node, then ends its own keeper and nest.
func (n *Node) teardown() {
	if n.cmd == nil {
		n.Launch()
	}
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	defer cancel()
	list, err := n.CRI.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err == nil {
		for _, p := range list.GetItems() {
			_, _ = n.CRI.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.GetId()})
			_, _ = n.CRI.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
	}
	n.Stop()
	n.KillPair()
}

// KillPair kills this node's keeper and nest together.
func (n *Node) KillPair() {
	n.t.Helper()
	KillTogether(n.t, append(n.Processes("keeper"), n.Processes("nest")...)...)
}

// Processes lists this node's processes of a role: keeper or nest. Other nodes may
// be in the same pid namespace.
func (n *Node) Processes(role string) []int {
	return slices.DeleteFunc(Pair(role), func(pid int) bool {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		argv := strings.Split(string(cmdline), "\x00")
		return err != nil || len(argv) < 3 || !strings.HasPrefix(argv[2], n.State+"/")
	})
}

// LogTail returns the last bytes of the agent's log.
func (n *Node) LogTail(size int64) string {
	st, err := n.log.Stat()
	if err != nil {
		return err.Error()
	}
	size = min(size, st.Size())
	buf := make([]byte, size)
	k, _ := n.log.ReadAt(buf, st.Size()-size)
	return string(buf[:k])
}

// CLI runs a command of the longshore binary against this node and returns its standard output.
func (n *Node) CLI(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(n.bin, "longshore"), args...)
	cmd.Env = append(append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(n.State, "control.sock"), "XDG_STATE_HOME="+n.Dir), n.opts.Env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("longshore %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), err
}

// Check asserts that the node's records and the kernel agree.
func (n *Node) Check() {
	n.t.Helper()
	out, err := n.CLI("check")
	if err != nil {
		n.t.Errorf("check: %v\n%s", err, out)
	}
}

// Event is one line of `longshore events --json`, as far as tests look.
type Event struct {
	Seq       uint64 `json:"seq"`
	Kind      string `json:"kind"`
	Container string `json:"container"`
	Sandbox   string `json:"sandbox"`
	Process   string `json:"process"`
}

// Events returns the whole event log.
func (n *Node) Events() []Event {
	n.t.Helper()
	out, err := n.CLI("events", "--since", "0", "--json", "--no-follow")
	if err != nil {
		n.t.Fatal(err)
	}
	var events []Event
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var e Event
		if err := dec.Decode(&e); err != nil {
			n.t.Fatalf("events: %v", err)
		}
		events = append(events, e)
	}
	return events
}

// pairNames are the names of the two programs of a pair, by role.
func pairNames() map[string]string {
	return map[string]string{"keeper": "longshore-keeper", "nest": "longshore-nest"}
}

// Pair lists the processes of this pid namespace that are keepers or nests, "" for both.
func Pair(role string) (pids []int) {
	for r, name := range pairNames() {
		if role == "" || role == r {
			pids = append(pids, Processes(name, r)...)
		}
	}
	return pids
}

// KillTogether kills processes so that none of them can do anything about the death of another,
// and waits until they are gone.
func KillTogether(t *testing.T, pids ...int) {
	t.Helper()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range pids {
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatalf("signal %d: %v", pid, err)
			}
		}
	}
	Eventually(t, fmt.Sprintf("processes %v are gone", pids), func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !gone(pid) })
	})
}

// HasPidfd reports whether a process has a descriptor of another one, as an agent has with a copy
// of the keeper's item.
func HasPidfd(pid, of int) bool {
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)) // the pattern is well-formed
	return slices.ContainsFunc(infos, func(path string) bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(b), fmt.Sprintf("\nPid:\t%d\n", of))
	})
}

// KernelTellsEnds reports whether the kernel tells how a process ended to one that is not its
// parent, as Linux 6.15 and later do.
func KernelTellsEnds() bool { return KernelFrom(6, 15) }

// KernelFrom reports whether the kernel is of this version or a later one.
func KernelFrom(wantMajor, wantMinor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > wantMajor || major == wantMajor && minor >= wantMinor)
}

// gone reports whether a process has ended; its parent may not have reaped it.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(b), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

// Processes lists the processes of this pid namespace with the program name comm (by /proc/PID/exe
// or their own first word) and the first argument arg ("" for any).
func Processes(comm, arg string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil {
			continue
		}
		argv := strings.Split(string(cmdline), "\x00")
		// Keeper and nest run from a detached mount, where exe has no name.
		if strings.TrimSuffix(filepath.Base(exe), " (deleted)") != comm && filepath.Base(argv[0]) != comm {
			continue
		}
		if arg == "" || len(argv) > 1 && argv[1] == arg {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Eventually is roottest.Eventually.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	roottest.Eventually(t, what, ok)
}
