package cri

import (
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// listener is one stream of container events.
type listener struct {
	t *testing.T
	s v1.RuntimeService_GetContainerEventsClient
}

func listen(t *testing.T, n *nodetest.Node) listener {
	t.Helper()
	s, err := n.CRI.GetContainerEvents(t.Context(), &v1.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return listener{t, s}
}

// next wants this event of id, with the statuses that a kubelet without relists
// lives on: of the pod, and of so many containers.
func (l listener) next(id string, kind v1.ContainerEventType, containers int) *v1.ContainerEventResponse {
	l.t.Helper()
	e, err := l.s.Recv()
	if err != nil {
		l.t.Fatal(err)
	}
	if e.GetContainerId() != id || e.GetContainerEventType() != kind || e.GetCreatedAt() == 0 || e.GetPodSandboxStatus().GetMetadata().GetUid() == "" || len(e.GetContainersStatuses()) != containers {
		l.t.Fatalf("got %v, want %s of %s with %d containers", e, kind, id, containers)
	}
	return e
}

// TestEventsGoOnAfterARestart: a client that connects again after the agent's death gets the
// present state, with the ends of meanwhile, and then new events.
func TestEventsGoOnAfterARestart(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		if _, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		const (
			created = v1.ContainerEventType_CONTAINER_CREATED_EVENT
			started = v1.ContainerEventType_CONTAINER_STARTED_EVENT
			stopped = v1.ContainerEventType_CONTAINER_STOPPED_EVENT
			deleted = v1.ContainerEventType_CONTAINER_DELETED_EVENT
		)
		before := listen(t, n)
		pod := n.RunPod(t, n.PodConfig("p"))
		before.next(pod.ID, created, 0)
		before.next(pod.ID, started, 0)
		stays := pod.Run(t, nodetest.ContainerConfig("stays", ref, "/bin/sleep", "1000"))
		before.next(stays.ID, created, 1)
		before.next(stays.ID, started, 1)
		ends := pod.Run(t, nodetest.ContainerConfig("ends", ref, "/bin/sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.01; done; exit 7"))
		before.next(ends.ID, created, 2)
		before.next(ends.ID, started, 2)
		pid := mainPid(t, n, ends.ID)
		n.Kill()
		if _, err := before.s.Recv(); err == nil {
			t.Error("the stream outlived the agent")
		}
		if err := os.WriteFile("/proc/"+pid+"/root/tmp/end", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.Up()
		after := listen(t, n)
		after.next(pod.ID, started, 2)
		after.next(stays.ID, started, 2)
		// It ended without an agent, or just now: either way its end is one event.
		e, err := after.s.Recv()
		if err == nil && e.GetContainerEventType() == started {
			e, err = after.s.Recv()
		}
		if err != nil || e.GetContainerId() != ends.ID || e.GetContainerEventType() != stopped {
			t.Fatalf("%v, %v", e, err)
		}
		for _, s := range e.GetContainersStatuses() {
			if s.GetId() == ends.ID && (s.GetState() != v1.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 7) {
				t.Errorf("%v", s)
			}
		}
		pod.Remove(t)
		told := map[string][]v1.ContainerEventType{}
		for last := ""; last != pod.ID; {
			e, err := after.s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if e.GetPodSandboxStatus().GetMetadata().GetUid() == "" {
				t.Errorf("whose is it: %v", e)
			}
			told[e.GetContainerId()] = append(told[e.GetContainerId()], e.GetContainerEventType())
			if e.GetContainerEventType() == deleted {
				last = e.GetContainerId()
			}
		}
		want := map[string][]v1.ContainerEventType{stays.ID: {stopped, deleted}, ends.ID: {deleted}, pod.ID: {stopped, deleted}}
		if d := cmp.Diff(want, told); d != "" {
			t.Error(d)
		}
		n.Check()
	})
}

// mainPid is a container's, as crictl inspect shows it.
func mainPid(t *testing.T, n *nodetest.Node, id string) string {
	t.Helper()
	st, err := n.CRI.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Pid int }
	decode(t, st.GetInfo()["info"], &info)
	return strconv.Itoa(info.Pid)
}
