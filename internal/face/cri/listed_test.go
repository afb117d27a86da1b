package cri

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/listcache"
)

// TestKeptEntriesEqualFreshOnes changes pods and containers in random order. After each change the lists of a server that
// keeps entries equal those of a server that has kept none, for random filters.
func TestKeptEntriesEqualFreshOnes(t *testing.T) {
	n, names := newTestNode(t), 0
	for seed := range uint64(4) {
		w := &listed{testNode: n, rand: rand.New(rand.NewPCG(seed, 43)), running: map[string]bool{}, names: &names}
		for range 60 {
			w.change(t)
			for range 3 {
				w.compare(t)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// listed is a node with pods and containers that change.
type listed struct {
	*testNode
	rand             *rand.Rand
	pods, containers []string
	running          map[string]bool
	names            *int
}

// name is one that no other pod or container has.
func (w *listed) name(kind string) string {
	*w.names++
	return fmt.Sprint(kind, *w.names)
}

func (w *listed) any(ids []string) string { return ids[w.rand.IntN(len(ids))] }

// change makes one random change.
func (w *listed) change(t *testing.T) {
	t.Helper()
	switch n := w.rand.IntN(12); {
	case len(w.pods) == 0 || n == 0:
		w.pods = append(w.pods, w.pod(t, w.name("p")))
	case len(w.containers) == 0 || n < 4:
		w.containers = append(w.containers, w.container(t, w.any(w.pods), w.name("c")))
	case n < 7:
		id := w.any(w.containers)
		if w.running[id] {
			w.exit(t, id, core.Exit{Code: w.rand.IntN(3)})
		} else if _, err := w.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}); err != nil {
			return // it has run already
		}
		w.running[id] = !w.running[id]
	case n < 9:
		_, err := w.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
			ContainerId: w.any(w.containers), Linux: &v1.LinuxContainerResources{CpuShares: int64(2 + w.rand.IntN(1000))},
		})
		_ = err // an ended one refuses
	case n < 11:
		w.remove(t, w.any(w.containers))
	default:
		if _, err := w.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: w.any(w.pods)}); err != nil {
			t.Fatal(err)
		}
		w.pods, w.containers = nil, nil // those of the stopped pod have ended; all of them stay in the lists
	}
}

func (w *listed) remove(t *testing.T, id string) {
	t.Helper()
	if _, err := w.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for _, c := range w.containers {
		if c != id {
			rest = append(rest, c)
		}
	}
	w.containers = rest
	delete(w.running, id)
}

// compare lists by one random filter each, with kept entries and without.
func (w *listed) compare(t *testing.T) {
	t.Helper()
	kept := w.face.server
	fresh := &server{engine: kept.engine, nri: kept.nri}
	cf, pf := &v1.ContainerFilter{}, &v1.PodSandboxFilter{}
	if len(w.containers) > 0 && w.rand.IntN(4) == 0 {
		cf.Id = w.any(w.containers)
	}
	if len(w.pods) > 0 && w.rand.IntN(3) == 0 {
		cf.PodSandboxId, pf.Id = w.any(w.pods), w.any(w.pods)
	}
	if w.rand.IntN(2) == 0 {
		cf.State = &v1.ContainerStateValue{State: v1.ContainerState(w.rand.IntN(4))}
		pf.State = &v1.PodSandboxStateValue{State: v1.PodSandboxState(w.rand.IntN(2))}
	}
	same(t, &v1.ListContainersResponse{}, func(s *server) ([][]byte, error) { return s.containers(cf) }, kept, fresh)
	same(t, &v1.ListPodSandboxResponse{}, func(s *server) ([][]byte, error) { return s.sandboxes(pf) }, kept, fresh)
}

// same compares the answers of two servers as a client decodes them.
func same[M proto.Message](t *testing.T, empty M, list func(*server) ([][]byte, error), kept, fresh *server) {
	t.Helper()
	var answers []proto.Message
	for _, s := range []*server{kept, fresh} {
		entries, err := list(s)
		if err != nil {
			t.Fatal(err)
		}
		answer := proto.Clone(empty)
		sent, err := proto.Marshal(listcache.Answer(proto.Clone(empty), entries))
		if err == nil {
			err = proto.Unmarshal(sent, answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	if d := cmp.Diff(answers[1], answers[0], protocmp.Transform()); d != "" {
		t.Errorf("%T: fresh entries (-) and kept ones (+) differ:\n%s", empty, d)
	}
}
