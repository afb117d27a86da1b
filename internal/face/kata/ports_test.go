package kata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// fakeStreams has connections by their ports.
type fakeStreams struct {
	mu sync.Mutex // guards at
	at map[uint32]net.Conn
}

func (f *fakeStreams) Take(_ context.Context, port uint32) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.at[port]
	delete(f.at, port)
	if c == nil {
		return nil, fmt.Errorf("port %d: %w", port, errdefs.ErrNotFound)
	}
	return c, nil
}

// dial makes a connection that has come from a port.
func (f *fakeStreams) dial(t *testing.T, port uint32) net.Conn {
	t.Helper()
	shim, own := net.Pipe()
	t.Cleanup(func() { _ = shim.Close() })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at[port] = own
	return shim
}

func newPortRig(t *testing.T, requests Requests, policy Policy) (*rig, *fakeStreams) {
	t.Helper()
	streams := &fakeStreams{at: map[uint32]net.Conn{}}
	r := newRigThatAllows(t, requests, policy)
	r.face.o.Streams = streams
	r.node.Supervisor.Program("both", func(p *enginetest.Process) int {
		b, _ := io.ReadAll(p.Stdin)
		_, _ = fmt.Fprintf(p.Stdout(), "out %s", b)
		_, _ = fmt.Fprintf(p.Stderr(), "err %s", b)
		return 5
	})
	r.sandbox(t)
	return r, streams
}

// through reads both outputs and writes the input as a shim that connects by ports.
func through(t *testing.T, stdin, stdout, stderr net.Conn, input string) (out, errs string) {
	t.Helper()
	var both sync.WaitGroup
	read := func(from net.Conn, to *string) {
		both.Go(func() {
			b, err := io.ReadAll(from)
			if err != nil {
				t.Error(err)
			}
			*to = string(b)
		})
	}
	read(stdout, &out)
	read(stderr, &errs)
	if stdin != nil {
		if _, err := io.WriteString(stdin, input); err != nil {
			t.Error(err)
		}
		_ = stdin.Close()
	}
	both.Wait()
	return out, errs
}

// TestStreamsByPorts: a container and an exec are written and read by connections, as Dragonball's shim does it.
func TestStreamsByPorts(t *testing.T) {
	r, streams := newPortRig(t, Requests{}, nil)
	in, out, errs := streams.dial(t, 1), streams.dial(t, 2), streams.dial(t, 3)
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "both"), StdinPort: 1, StdoutPort: 2, StderrPort: 3}); err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	if o, e := through(t, in, out, errs, "hello"); o != "out hello" || e != "err hello" {
		t.Errorf("stdout %q, stderr %q", o, e)
	}
	if st, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "c1"}); err != nil || st.GetStatus() != 5 {
		t.Errorf("WaitProcess: %v, %v", st, err)
	}
	r.run(t, "c2", "cat")
	in, out, errs = streams.dial(t, 1), streams.dial(t, 2), streams.dial(t, 3)
	exec := &katav1.ExecProcessRequest{ContainerId: "c2", ExecId: "e1", Process: specOf(t, "both").GetProcess(), StdinPort: 1, StdoutPort: 2, StderrPort: 3}
	if _, err := r.ExecProcess(t.Context(), exec); err != nil {
		t.Fatalf("ExecProcess: %v", err)
	}
	if o, e := through(t, in, out, errs, strings.Repeat("x", 100_000)); len(o) != 100_004 || len(e) != 100_004 {
		t.Errorf("%d bytes of stdout, %d of stderr", len(o), len(e))
	}
	// Without a port for it, the input is at its end.
	out = streams.dial(t, 2)
	exec = &katav1.ExecProcessRequest{ContainerId: "c2", ExecId: "e2", Process: specOf(t, "cat").GetProcess(), StdoutPort: 2}
	if _, err := r.ExecProcess(t.Context(), exec); err != nil {
		t.Fatalf("ExecProcess: %v", err)
	}
	if b, err := io.ReadAll(out); err != nil || len(b) > 0 {
		t.Errorf("a cat without input writes %q, %v", b, err)
	}
	if st, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c2", ExecId: "e2"}); err != nil || st.GetStatus() != 3 {
		t.Errorf("WaitProcess: %v, %v", st, err)
	}
}

// TestAWaitComesAfterTheOutput: a shim that has the status of a process has its output too.
func TestAWaitComesAfterTheOutput(t *testing.T) {
	r, streams := newPortRig(t, Requests{}, nil)
	r.run(t, "c1", "cat")
	out, errs := streams.dial(t, 2), streams.dial(t, 3)
	exec := &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: specOf(t, "both").GetProcess(), StdoutPort: 2, StderrPort: 3}
	if _, err := r.ExecProcess(t.Context(), exec); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "e1"})
		waited <- err
	}()
	if _, err := r.node.As(core.OwnerKata).Wait(t.Context(), core.Ref{Container: r.only(t), Process: "e1"}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-waited:
		t.Errorf("it returned before the output was read: %v", err)
	default:
	}
	o, e := through(t, nil, out, errs, "")
	if err := <-waited; err != nil || o != "out " || e != "err " {
		t.Errorf("stdout %q, stderr %q, %v", o, e, err)
	}
}

// only returns the id of the one container.
func (r *rig) only(t *testing.T) core.ID {
	t.Helper()
	list, err := r.node.As(core.OwnerKata).Containers(t.Context(), core.Filter{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d containers, %v", len(list), err)
	}
	return list[0].ID
}

// TestPortsThatFail: a call without its connection makes nothing, and a shim that closes its connections blocks no
// process.
func TestPortsThatFail(t *testing.T) {
	r, streams := newPortRig(t, Requests{}, nil)
	out := streams.dial(t, 2)
	_, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: specOf(t, "both"), StdoutPort: 2, StderrPort: 3})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "stderr: port 3") {
		t.Errorf("without a connection: %v", err)
	}
	if _, err := out.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection that came: %v", err)
	}
	r.run(t, "c1", "cat")
	in, out := streams.dial(t, 1), streams.dial(t, 2)
	exec := &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: specOf(t, "cat").GetProcess(), StdinPort: 1, StdoutPort: 2}
	if _, err := r.ExecProcess(t.Context(), exec); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if _, err := in.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Errorf("the process takes no more: %v", err)
	}
	_ = in.Close()
	if st, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "e1"}); err != nil || st.GetStatus() != 3 {
		t.Errorf("WaitProcess: %v, %v", st, err)
	}
	r.face.o.Streams = nil
	_, err = r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e2", Process: specOf(t, "cat").GetProcess(), StdoutPort: 2})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "passfd_listener_port") {
		t.Errorf("without the option: %v", err)
	}
}

// TestPortsObeyTheLists: a shim cannot read or write by connections if it must not by calls.
func TestPortsObeyTheLists(t *testing.T) {
	for _, deny := range []string{"ReadStreamRequest", "WriteStreamRequest"} {
		r, streams := newPortRig(t, Requests{Deny: []string{deny}}, nil)
		r.run(t, "c1", "cat")
		in, out, errs := streams.dial(t, 1), streams.dial(t, 2), streams.dial(t, 3)
		exec := &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: specOf(t, "both").GetProcess(), StdinPort: 1, StdoutPort: 2, StderrPort: 3}
		if _, err := r.ExecProcess(t.Context(), exec); err != nil {
			t.Fatal(err)
		}
		o, e := through(t, in, out, errs, "secret")
		if strings.Contains(o+e, "secret") || (deny == "ReadStreamRequest") != (o+e == "") {
			t.Errorf("without %s: stdout %q, stderr %q", deny, o, e)
		}
		if st, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "e1"}); err != nil || st.GetStatus() != 5 {
			t.Errorf("WaitProcess: %v, %v", st, err)
		}
	}
}
