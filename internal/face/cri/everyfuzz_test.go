package cri

import (
	"context"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// FuzzRequests gives any request of any call to a node with a pod, a container that runs and one
// that does not. No call panics; an error's code names the side at fault; an answer can be sent; a
// create that fails leaves nothing, and the result of one that succeeds goes with its pod.
func FuzzRequests(f *testing.F) {
	n := newTestNode(f)
	n.Supervisor.Program("say", func(*enginetest.Process) int { return 0 })
	n.Images.Offer("gone:1", imagespec.ImageConfig{Cmd: []string{"x"}}, nil)
	all := rpcs(f)
	if len(all) > math.MaxUint8 {
		f.Fatal("a byte does not tell the calls apart")
	}
	good := n.requests()
	for i, c := range all {
		b, err := proto.Marshal(good[c.name])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), b)
		f.Add(byte(i), []byte{})
	}
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		c := all[int(which)%len(all)]
		req := c.request.New().Interface()
		if proto.Unmarshal(b, req) != nil {
			return
		}
		ids := n.populate(t)
		setIDs(req.ProtoReflect(), func(_, said string) string {
			if id, ok := ids[said]; ok {
				return id
			}
			return said
		})
		n.tame(req)
		before := n.Left()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		sent, err := n.call(ctx, c, req)
		for _, m := range sent {
			if _, err := proto.Marshal(m); err != nil {
				t.Errorf("%s: the answer cannot be sent: %v", c.name, err)
			}
		}
		switch code := status.Code(err); {
		case code == codes.Unknown, code == codes.Internal, code == codes.DataLoss, code == codes.DeadlineExceeded:
			t.Errorf("%s: %v\n%s", c.name, err, prototext.Format(req))
		case err != nil && (strings.HasSuffix(c.name, "/RunPodSandbox") || strings.HasSuffix(c.name, "/CreateContainer")):
			if left := n.Left(); !slices.Equal(before, left) {
				t.Errorf("%s failed (%v) and left\n%v of\n%v", c.name, err, left, before)
			}
		}
		n.empty(t)
	})
}

// populate makes the pod and containers that requests may name: the words, and
// the IDs they stand for.
func (n *testNode) populate(t *testing.T) map[string]string {
	t.Helper()
	pod := n.pod(t, "p")
	return map[string]string{"pod": pod, "run": n.running(t, pod, "run"), "made": n.container(t, pod, "made")}
}

// empty removes all pods, and wants nothing to be left of them.
func (n *testNode) empty(t *testing.T) {
	t.Helper()
	list, err := n.As(core.OwnerCRI).Sandboxes(t.Context(), core.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: string(sb.ID)}); err != nil {
			t.Errorf("remove sandbox: %v", err)
		}
	}
	if err := n.TrySettle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// tame moves every log directory into the test's own: a request may name any, and the face makes
// it. It executes only a program that ends.
func (n *testNode) tame(req proto.Message) {
	move := func(c *v1.PodSandboxConfig) {
		if d := c.GetLogDirectory(); path.IsAbs(d) && !strings.HasPrefix(d, n.logs) {
			c.LogDirectory = filepath.Join(n.logs, "moved", path.Clean(d))
		}
	}
	switch r := req.(type) {
	case *v1.RunPodSandboxRequest:
		move(r.GetConfig())
	case *v1.CreateContainerRequest:
		move(r.GetSandboxConfig())
	case *v1.ExecSyncRequest:
		if len(r.GetCmd()) > 0 {
			r.Cmd[0] = "say"
		}
	}
}

// TestRequestsOfEveryCall is a pass over the fuzz target's good requests: each
// is answered.
func TestRequestsOfEveryCall(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("say", func(*enginetest.Process) int { return 0 })
	n.Images.Offer("gone:1", imagespec.ImageConfig{Cmd: []string{"x"}}, nil)
	good := n.requests()
	for _, c := range rpcs(t) {
		ids := n.populate(t)
		setIDs(good[c.name].ProtoReflect(), func(field, said string) string {
			if ids[said] == "" {
				t.Errorf("%s: %s %q is nothing here", c.name, field, said)
			}
			return ids[said]
		})
		_, err := n.call(t.Context(), c, good[c.name])
		if want := wantOfGood(c.name); status.Code(err) != want {
			t.Errorf("%s: %v; want %s", c.name, err, want)
		}
		n.empty(t)
	}
	if n := len(good); n != len(rpcs(t)) {
		t.Error(fmt.Sprint(n, " requests"))
	}
}

func wantOfGood(name string) codes.Code {
	switch name {
	case "RuntimeService/CheckpointContainer", "RuntimeService/CheckpointPod", "RuntimeService/RestorePod":
		return codes.Unimplemented
	case "RuntimeService/GetContainerEvents": // until its client goes
		return codes.Canceled
	}
	return codes.OK
}
