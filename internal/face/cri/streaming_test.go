package cri

import (
	"context"
	"io"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/cri/stream"
)

func TestStreamRequests(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	id, created := n.running(t, pod, "c"), n.container(t, pod, "created")
	exec := func(id string, change func(*v1.ExecRequest)) error {
		req := &v1.ExecRequest{ContainerId: id, Cmd: []string{"x"}, Stdout: true}
		if change != nil {
			change(req)
		}
		_, err := n.Exec(ctx, req)
		return err
	}
	attach := func(req *v1.AttachRequest) error {
		_, err := n.Attach(ctx, req)
		return err
	}
	forward := func(req *v1.PortForwardRequest) error {
		_, err := n.PortForward(ctx, req)
		return err
	}
	wantCode(t, "exec", exec(id, nil), codes.OK)
	wantCode(t, "exec by a prefix", exec(id[:13], nil), codes.OK)
	wantCode(t, "unknown", exec("nope", nil), codes.NotFound)
	wantCode(t, "not started", exec(created, nil), codes.FailedPrecondition)
	wantCode(t, "no command", exec(id, func(r *v1.ExecRequest) { r.Cmd = nil }), codes.InvalidArgument)
	wantCode(t, "no stream", exec(id, func(r *v1.ExecRequest) { r.Stdout = false }), codes.InvalidArgument)
	wantCode(t, "terminal with stderr", exec(id, func(r *v1.ExecRequest) { r.Tty, r.Stderr = true, true }), codes.InvalidArgument)
	wantCode(t, "attach", attach(&v1.AttachRequest{ContainerId: id, Stdin: true}), codes.OK)
	wantCode(t, "attach to nothing", attach(&v1.AttachRequest{Stdin: true}), codes.InvalidArgument)
	wantCode(t, "attach before it runs", attach(&v1.AttachRequest{ContainerId: created, Stdin: true}), codes.FailedPrecondition)
	wantCode(t, "attach no stream", attach(&v1.AttachRequest{ContainerId: id}), codes.InvalidArgument)
	wantCode(t, "forward", forward(&v1.PortForwardRequest{PodSandboxId: pod, Port: []int32{80}}), codes.OK)
	wantCode(t, "forward a port that is none", forward(&v1.PortForwardRequest{PodSandboxId: pod, Port: []int32{0}}), codes.InvalidArgument)
	wantCode(t, "forward to nothing", forward(&v1.PortForwardRequest{}), codes.InvalidArgument)
	wantCode(t, "forward to the unknown", forward(&v1.PortForwardRequest{PodSandboxId: "nope"}), codes.NotFound)
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "forward to what has stopped", forward(&v1.PortForwardRequest{PodSandboxId: pod}), codes.FailedPrecondition)
	wantCode(t, "exec in what has stopped", exec(id, nil), codes.FailedPrecondition)
}

// channels joins the session at a URL.
func channels(t *testing.T, address string) *websocket.Conn {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = "ws"
	ws, err := websocket.Dial(u.String(), "v5.channel.k8s.io", "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

func TestExecOverTheWire(t *testing.T) {
	n := newTestNode(t)
	id := n.running(t, n.pod(t, "p"), "c")
	n.Supervisor.Program("talk", func(p *enginetest.Process) int {
		_, _ = io.WriteString(p.Stdout(), strings.Join(p.Args, " "))
		_, _ = io.WriteString(p.Stderr(), "err")
		return 7
	})
	r, err := n.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"talk", "a"}, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	ws := channels(t, r.GetUrl())
	got := map[byte]string{}
	for {
		var msg []byte
		if websocket.Message.Receive(ws, &msg) != nil {
			break
		}
		got[msg[0]] += string(msg[1:])
	}
	if got[1] != "talk a" || got[2] != "err" || !strings.Contains(got[3], `"message":"7"`) {
		t.Errorf("%q", got)
	}
	n.noExecs(t, id)
}

func TestAnExecEndsWithItsClient(t *testing.T) {
	n := newTestNode(t)
	id := n.running(t, n.pod(t, "p"), "c")
	started := make(chan struct{})
	n.Supervisor.Program("sleep", func(p *enginetest.Process) int {
		close(started)
		<-p.Killed
		return 0
	})
	r, err := n.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"sleep"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	ws := channels(t, r.GetUrl())
	<-started
	_ = ws.Close()
	n.shutdown() // waits for the session
	n.noExecs(t, id)
}

var _ stream.Backend = backend{}

func TestDialWantsAReadySandbox(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	b := backend{n.face.server}
	if _, err := b.Dial(context.Background(), "nope", 1); err == nil {
		t.Error("an unknown sandbox was dialled")
	}
	if _, err := n.As(core.OwnerCRI).Sandbox(t.Context(), core.ID(pod)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Dial(t.Context(), pod, 1); err == nil { // its namespace is a fake
		t.Error("a namespace that is not there was dialled")
	}
}
