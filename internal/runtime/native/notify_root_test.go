package native_test

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// told is a message to a listener.
type told struct {
	state specs.ContainerProcessState
	fd    int
}

// listen takes one message per connection, as the runtime spec wants.
func listen(t *testing.T, path string) <-chan told {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ch := make(chan told, 8)
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			b, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			n, on, _, _, err := c.ReadMsgUnix(b, oob)
			got := told{fd: -1}
			if err == nil && json.Unmarshal(b[:n], &got.state) == nil {
				if cs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(cs) == 1 {
					if fds, err := unix.ParseUnixRights(&cs[0]); err == nil {
						got.fd = fds[0]
					}
				}
			}
			// It is closed, and nothing more comes by it.
			if n, err := c.Read(b); n > 0 || err == nil {
				got.state.Fds = append(got.state.Fds, "more")
			}
			_ = c.Close()
			ch <- got
		}
	}()
	return ch
}

// refuseOne answers one call with an error and returns its pid and number.
func refuseOne(t *testing.T, fd int, errno syscall.Errno) (pid uint32, nr int32) {
	t.Helper()
	var asked struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	const recv, send = 0xc0502100, 0xc0182101 // SECCOMP_IOCTL_NOTIF_RECV, _SEND
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), recv, uintptr(unsafe.Pointer(&asked)))
		if e == unix.EINTR || e == unix.ENOENT {
			continue
		}
		if e != 0 {
			t.Fatalf("receive: %v", e)
		}
		break
	}
	answer := struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}{id: asked.id, err: -int32(errno)}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), send, uintptr(unsafe.Pointer(&answer))); e != 0 {
		t.Fatalf("answer: %v", e)
	}
	return asked.pid, asked.nr
}

func TestASeccompListenerIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		from := listen(t, "/run/l.sock")
		next := func() told {
			t.Helper()
			select {
			case x := <-from:
				if x.fd < 0 {
					t.Fatalf("%+v", x)
				}
				return x
			case <-time.After(time.Minute):
				t.Fatal("the listener was told nothing")
			}
			panic("unreachable")
		}
		for _, nnp := range []bool{true, false} {
			s := script("mkdir /tmp/asked; echo $? > /tmp/ready; sleep 1000")
			s.Version, s.Annotations = "1.2.0", map[string]string{"a": "b"}
			s.Process.NoNewPrivileges = nnp
			s.Linux.Seccomp = &specs.LinuxSeccomp{
				DefaultAction: specs.ActAllow, ListenerPath: "/run/l.sock", ListenerMetadata: "meta", Flags: []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC"},
				Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActNotify}},
			}
			_ = os.Remove(n.root + "/tmp/ready")
			if err := unix.Mkfifo(n.root+"/tmp/ready", 0o666); err != nil {
				t.Fatal(err)
			}
			id, err := n.parked(t, s)
			if err != nil {
				t.Fatal(err)
			}
			main := next()
			pid := n.pidOf(t, id)
			want := specs.ContainerProcessState{Version: "1.2.0", Fds: []string{"seccompFd"}, Pid: pid, Metadata: "meta", State: specs.State{
				Version: "1.2.0", ID: string(id), Status: specs.StateCreating, Pid: pid, Bundle: n.dir + "/" + string(id), Annotations: s.Annotations,
			}}
			if d := cmp.Diff(want, main.state); d != "" {
				t.Errorf("no new privileges %v: %s", nnp, d)
			}
			if err := n.runtime.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if _, nr := refuseOne(t, main.fd, unix.EXDEV); nr == 0 {
				t.Errorf("asked about %d", nr)
			}
			if b, err := os.ReadFile(n.root + "/tmp/ready"); err != nil || string(b) != "1\n" {
				t.Errorf("mkdir ended with %q, %v", b, err)
			}
			p := *s.Process
			p.Args = []string{"/bin/mkdir", "/tmp/exec"}
			ref := core.Ref{Container: id, Process: "e"}
			l, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p})
			if err != nil {
				t.Fatal(err)
			}
			exec := next()
			want.Pid, want.State.Status = l.Pid, specs.StateRunning
			if d := cmp.Diff(want, exec.state); d != "" {
				t.Errorf("exec: %s", d)
			}
			refuseOne(t, exec.fd, unix.ENOSPC)
			for x, err := range n.keeper.Exits(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if x.Ref == ref {
					if x.Exit.Code != 1 {
						t.Errorf("exec: %+v", x.Exit)
					}
					break
				}
			}
			_ = n.keeper.Forget(t.Context(), ref)
			_, _ = unix.Close(main.fd), unix.Close(exec.fd)
		}
		s := script("true")
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/nobody.sock", Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir"}, Action: specs.ActNotify}}}
		if _, err := n.parked(t, s); err == nil || !strings.Contains(err.Error(), "connect to the seccomp listener") {
			t.Errorf("nobody listens: %v", err)
		}
	})
}

// pidOf is a container's.
func (n *node) pidOf(t *testing.T, id core.ID) int {
	t.Helper()
	all, err := n.keeper.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			return p.Pid
		}
	}
	t.Fatalf("no process of %s", id)
	return 0
}
