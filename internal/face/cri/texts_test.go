package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestTextsOfErrors makes every call fail at every step of every port, on two objects each, and
// checks the text: the same both times, no ID, no part twice, and the cause within the first
// hundred characters. kubelet joins events by their text, and others cut it off.
func TestTextsOfErrors(t *testing.T) {
	const cause = "the cause that is told"
	seen, failed := map[string]bool{}, map[string]int{}
	for range 200 { // one step more each time, until all have failed
		fresh := false
		said := map[string][2]string{}
		for object := range 2 {
			fresh = walk(t, seen, func(call, step, text string, ids []string) {
				key := call + " at " + step
				pair := said[key]
				pair[object] = text
				said[key] = pair
				failed[call]++
				checkText(t, key, text, cause, ids)
			}, cause) || fresh
		}
		for key, pair := range said {
			if pair[0] != pair[1] && pair[0] != "" && pair[1] != "" { // some are made beside others
				t.Errorf("%s: %q and %q", key, pair[0], pair[1])
			}
			seen[key] = true
		}
		if !fresh {
			break
		}
	}
	for _, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"} {
		if failed[call] == 0 {
			t.Errorf("%s never failed", call)
		}
	}
	t.Logf("failures seen: %v", failed)
}

func checkText(t *testing.T, key, text, cause string, ids []string) {
	t.Helper()
	if i := strings.Index(text, cause); i < 0 || i > 100 {
		t.Errorf("%s: the cause is at %d of %q", key, i, text)
	}
	for _, id := range ids {
		if strings.Contains(text, id) {
			t.Errorf("%s: an ID in %q", key, text)
		}
	}
	parts := strings.Split(text, ": ")
	for i, p := range parts {
		if slices.Contains(parts[:i], p) {
			t.Errorf("%s: %q twice in %q", key, p, text)
		}
	}
}

// walk goes through an object's life and makes each call fail once at a step not seen yet; the call
// is then repeated, which succeeds. It reports whether something failed.
func walk(t *testing.T, seen map[string]bool, told func(call, step, text string, ids []string), cause string) (fresh bool) {
	t.Helper()
	n := newTestNode(t)
	defer n.shutdown()
	n.Supervisor.Program("done", func(*enginetest.Process) int { return 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var ids []string
	var mu sync.Mutex      // guards call, broke: some steps of a call are taken at the same time
	var call, broke string // call is "" while nothing is to fail
	arm := func(port interface{ Fail(func(string) error) }, name string) {
		port.Fail(func(step string) error {
			mu.Lock()
			defer mu.Unlock()
			step = name + "." + step
			if broke != "" || call == "" || seen[call+" at "+step] || background(step) {
				return nil
			}
			broke = step
			return fmt.Errorf("%s: %w", cause, errdefs.ErrUnavailable)
		})
	}
	arm(n.Network, "network")
	arm(n.Pinner, "pinner")
	arm(n.Cgroups, "cgroups")
	arm(n.Roots, "roots")
	arm(n.Images, "images")
	arm(n.Runtime, "runtime")
	arm(n.Supervisor, "supervisor")
	try := func(name string, do func(ctx context.Context) error) {
		t.Helper()
		mu.Lock()
		call, broke = name, ""
		mu.Unlock()
		err := do(ctx)
		mu.Lock()
		call = ""
		at := broke
		mu.Unlock()
		if err != nil {
			fresh = true
			told(name, at, status.Convert(err).Message(), ids)
			err = do(ctx)
		}
		if err != nil && !errors.Is(err, errEnough) {
			t.Fatalf("%s after a failure at %s: %v", name, at, err)
		}
	}
	var podID, id string
	try("RunPodSandbox", func(ctx context.Context) error {
		r, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: n.podConfig("pod")})
		podID = r.GetPodSandboxId()
		return err
	})
	ids = append(ids, podID)
	try("CreateContainer", func(ctx context.Context) error {
		r, err := n.CreateContainer(ctx, n.containerRequest(podID, "c"))
		id = r.GetContainerId()
		return err
	})
	ids = append(ids, id)
	start := true
	try("StartContainer", func(ctx context.Context) error {
		_, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id})
		if err != nil && call == "" { // a start is not tried again
			start = false
			return errEnough
		}
		return err
	})
	if start {
		try("ExecSync", func(ctx context.Context) error {
			_, err := n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"done"}})
			if call == "" {
				return errEnough
			}
			return err
		})
	}
	try("StopContainer", func(ctx context.Context) error {
		_, err := n.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: 1})
		return err
	})
	try("RemoveContainer", func(ctx context.Context) error {
		_, err := n.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: id})
		return err
	})
	try("StopPodSandbox", func(ctx context.Context) error {
		_, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: podID})
		return err
	})
	try("RemovePodSandbox", func(ctx context.Context) error {
		_, err := n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: podID})
		return err
	})
	return fresh
}

// errEnough ends a call that is not to be repeated.
var errEnough = errors.New("enough") //nolint:gochecknoglobals // an error value

// background reports whether the engine makes a step by itself.
func background(step string) bool {
	return slices.Contains([]string{"supervisor.Exits", "supervisor.Status", "supervisor.Processes", "supervisor.Ack"}, step)
}

// TestWhoHoldsANameIsTold: a conflict of names says the holder, and no other error does.
func TestWhoHoldsANameIsTold(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	cfg := n.podConfig("p")
	cfg.Labels = map[string]string{"another": "one"}
	_, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: cfg})
	if text := status.Convert(err).Message(); !strings.Contains(text, "in use by sandbox "+pod+", which is ready") {
		t.Errorf("%q", text)
	}
	id := n.running(t, pod, "c")
	_, err = n.CreateContainer(t.Context(), n.containerRequest(pod, "c"))
	if text := status.Convert(err).Message(); !strings.Contains(text, "in use by container "+id+", which is running") {
		t.Errorf("%q", text)
	}
}
