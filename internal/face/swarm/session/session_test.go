package session

import (
	"fmt"
	"math"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// TestPace: pauses double up to eight seconds, and a node registers again at most three times
// within the managers' window.
func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	if p.wait(now, true) != 0 {
		t.Error("the first session waits")
	}
	for i, want := range []int64{100, 300, 700, 1500, 3100, 6300, 8000, 8000} {
		p.failed()
		if p.backoff.Milliseconds() != want {
			t.Errorf("failure %d: %s, want %d ms", i+1, p.backoff, want)
		}
		if d := p.wait(now, false); d < 0 || d > p.backoff {
			t.Errorf("failure %d: it waits %s", i+1, d)
		}
	}
	p.opened(now, true)
	if p.backoff != 0 || p.wait(now, true) != 0 {
		t.Errorf("after a session: backoff %s", p.backoff)
	}
	p.opened(now.Add(time.Second), false) // resuming is free
	p.opened(now.Add(time.Second), true)
	p.opened(now.Add(2*time.Second), true)
	if d := p.wait(now.Add(2*time.Second), true); d != window-2*time.Second {
		t.Errorf("after three in two seconds: %s, want %s", d, window-2*time.Second)
	}
	if d := p.wait(now.Add(2*time.Second), false); d != 0 {
		t.Errorf("to resume: %s", d)
	}
	if d := p.wait(now.Add(window), true); d != 0 {
		t.Errorf("after the window: %s", d)
	}
}

func TestManagers(t *testing.T) {
	join := Peer{Addr: "10.0.0.1:2377"}
	m := NewManagers([]Peer{join})
	if p, ok := m.Pick(); !ok || p != join {
		t.Errorf("%v, %v", p, ok)
	}
	if m.Replace(nil) || len(m.All()) != 1 {
		t.Error("a list of nobody is believed")
	}
	peer := func(id, addr string) *swarmv1.WeightedPeer {
		return &swarmv1.WeightedPeer{Peer: &swarmv1.Peer{NodeId: id, Addr: addr}, Weight: 10}
	}
	list := []*swarmv1.WeightedPeer{peer("a", "10.0.0.1:2377"), peer("b", "10.0.0.2:2377"), peer("c", "")}
	if !m.Replace(list) || m.Replace(list) || len(m.All()) != 2 {
		t.Errorf("%v", m.All())
	}
	a, b := Peer{ID: "a", Addr: "10.0.0.1:2377"}, Peer{ID: "b", Addr: "10.0.0.2:2377"}
	for range 50 {
		m.Observe(a, bad)
		m.Observe(b, good)
		m.Observe(Peer{ID: "gone"}, good)
	}
	n := 0
	for range 1000 {
		if p, _ := m.Pick(); p == b {
			n++
		}
	}
	if n < 990 {
		t.Errorf("the good one was picked %d times of 1000", n)
	}
	if w := m.weights[a]; math.Abs(w-bad) > 1 || len(m.weights) != 2 {
		t.Errorf("weights %v", m.weights)
	}
	if _, ok := NewManagers(nil).Pick(); ok {
		t.Error("one was picked of none")
	}
}

// TestReports: the newest of each task, never a lower one, lower states first, and one that comes
// during a call is not forgotten after it.
func TestReports(t *testing.T) {
	r := NewReports()
	st := func(s swarmv1.TaskState) *swarmv1.TaskStatus { return &swarmv1.TaskStatus{State: s} }
	r.Put("a", st(swarmv1.TaskState_RUNNING))
	r.Put("a", st(swarmv1.TaskState_READY))
	r.Put("b", st(swarmv1.TaskState_ACCEPTED))
	r.Put("c", st(swarmv1.TaskState_READY))
	r.Drop("c")
	list := r.batch()
	if len(list) != 2 || list[0].GetTaskId() != "b" || list[1].GetStatus().GetState() != swarmv1.TaskState_RUNNING {
		t.Fatalf("%v", list)
	}
	r.Put("a", st(swarmv1.TaskState_COMPLETE))
	r.sent(list)
	if list = r.batch(); len(list) != 1 || list[0].GetStatus().GetState() != swarmv1.TaskState_COMPLETE {
		t.Errorf("%v", list)
	}
	r.sent(list)
	for i := range maxBatch + 1 {
		r.Put(fmt.Sprint(i), st(swarmv1.TaskState_RUNNING))
	}
	if list = r.batch(); len(list) != maxBatch {
		t.Errorf("%d in one call", len(list))
	}
	r.sent(list)
	if list = r.batch(); len(list) != 1 {
		t.Errorf("%d are left", len(list))
	}
	big := st(swarmv1.TaskState_FAILED)
	big.Err = string(make([]byte, maxBatchBytes))
	r.Put("big", big)
	r.sent(list)
	if list = r.batch(); len(list) != 1 || list[0].GetTaskId() != "big" {
		t.Errorf("one that is too large for all goes alone: %d", len(list))
	}
}
