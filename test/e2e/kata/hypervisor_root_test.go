package kata

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/kata/qemu"
)

// hypervisor acts as the shim's hypervisor of other machines: for each machine it starts an agent,
// and returns a socket that leads to it.
type hypervisor struct {
	t     *testing.T
	dir   string // of sockets and logs
	guest string // path of longshore-guest
	// virtual makes the agents the first processes of virtual machines.
	virtual bool
	state   string // containerd's, where the shims' pids are

	mu       sync.Mutex // guards machines
	machines map[string]*machine
}

// machine is one agent with the bridge to it.
type machine struct {
	*tape
	listener net.Listener
	log      string
	cmd      *exec.Cmd     // of the agent, or
	vm       *qemu.Machine // where it is the first process
	done     chan struct{} // closed when it has ended
	err      error         // then
}

// serve answers a shim's calls until the test ends. Each message that it needs has one
// string, its first field, like the message that stands for it here.
func (h *hypervisor) serve(socket string) {
	h.t.Helper()
	srv, err := ttrpc.NewServer()
	if err != nil {
		h.t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		h.t.Fatal(err)
	}
	call := func(f func(ctx context.Context, id string) (any, error)) ttrpc.Method {
		return func(ctx context.Context, unmarshal func(any) error) (any, error) {
			var req wrapperspb.StringValue
			if err := unmarshal(&req); err != nil {
				return nil, err
			}
			return f(ctx, req.GetValue())
		}
	}
	srv.RegisterService("hypervisor.Hypervisor", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"CreateVM": call(h.create), "StartVM": call(h.start), "StopVM": call(h.stop),
		"Version": call(func(context.Context, string) (any, error) { return wrapperspb.String("1"), nil }),
	}})
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := srv.Serve(context.WithoutCancel(h.t.Context()), l); !errors.Is(err, ttrpc.ErrServerClosed) {
			h.t.Errorf("the hypervisor: %v", err)
		}
	}()
	h.t.Cleanup(func() {
		_ = srv.Close()
		<-served
		for _, m := range h.machines {
			_ = m.listener.Close()
			if m.cmd != nil {
				_ = m.cmd.Process.Signal(syscall.SIGTERM) // most often it has ended
				<-m.done
			}
			if m.vm != nil {
				if h.t.Failed() {
					h.t.Logf("the console:\n%s", m.vm.Console())
				}
				_ = m.vm.Close() // the waiter for its end has the error
				<-m.done
			}
			if b, err := os.ReadFile(m.log); err == nil && h.t.Failed() {
				h.t.Logf("%s:\n%s", filepath.Base(m.log), b[max(0, len(b)-8000):])
			}
		}
	})
}

// create makes the shim's socket to the machine's agent.
func (h *hypervisor) create(_ context.Context, id string) (any, error) {
	short := id[:min(len(id), 12)]
	front := filepath.Join(h.dir, short)
	l, err := net.Listen("unix", front)
	if err != nil {
		return nil, err
	}
	m := &machine{tape: &tape{}, listener: l, log: filepath.Join(h.dir, short+".log"), done: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.machines[id] = m
	go m.bridge(l, m.dial)
	return wrapperspb.String(front), nil
}

// inGuest runs the agent with the guest's share of the host: the shim's mounts below $1 appear
// below $2.
const inGuest = `mkdir -p "$1" "$2"; mount --rbind "$1" "$2"; shift 2; exec "$@"`

// start starts the agent in the shim's mount and cgroup namespaces, for the shim mounts
// the containers' roots there, and waits until it listens.
func (h *hypervisor) start(ctx context.Context, id string) (any, error) {
	m := h.machine(id)
	if m == nil {
		return nil, fmt.Errorf("there is no machine %q", id)
	}
	found, err := filepath.Glob(filepath.Join(h.state, "io.containerd.runtime.v2.task", "*", id, "shim.pid"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("the pid of the shim of %s: %v, %w", id, found, err)
	}
	pid, err := os.ReadFile(found[0])
	if err != nil {
		return nil, err
	}
	shim := strings.TrimSpace(string(pid))
	if h.virtual {
		return &emptypb.Empty{}, h.boot(ctx, m, id, shim)
	}
	log, err := os.Create(m.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	back := m.listener.Addr().String() + ".agent"
	m.cmd = exec.CommandContext(context.WithoutCancel(ctx), "nsenter", "--target", shim, "--mount", "--cgroup",
		"unshare", "--mount", "--propagation", "slave", "sh", "-ec", inGuest, "sh",
		"/run/kata-containers/shared/sandboxes/"+id+"/mounts", "/run/kata-containers/shared/containers",
		h.guest, "--listen", "unix://"+back, "--state", m.listener.Addr().String()+".state", "--cgroup-root", "/longshore-guest-"+filepath.Base(m.listener.Addr().String()), "--log-level", "debug")
	m.cmd.Stderr = log
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.done)
	}()
	roottest.Eventually(h.t, "the agent listens", func() bool {
		_, err := os.Stat(back)
		select {
		case <-m.done:
			return true
		default:
			return err == nil
		}
	})
	return &emptypb.Empty{}, nil
}

// stop waits for the agent, which DestroySandbox has ended.
func (h *hypervisor) stop(ctx context.Context, id string) (any, error) {
	m := h.machine(id)
	if m == nil || m.cmd == nil && m.vm == nil {
		return &emptypb.Empty{}, nil
	}
	if !m.has("DestroySandbox") && m.cmd != nil {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-m.done:
		if m.err != nil {
			h.t.Errorf("the agent of %s ended with %v", id, m.err)
		}
		return &emptypb.Empty{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *hypervisor) machine(id string) *machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machines[id]
}
