package session

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// assigned makes assignments: "t1@5" is a task with its revision, "s1" a secret, "c1" a config. A secret or config
// with the same name is the same object.
func assigned(names ...string) inventory.Assignments {
	a := inventory.Assignments{Tasks: map[string]inventory.Task{}, Secrets: map[string]*swarmv1.Secret{}, Configs: map[string]*swarmv1.Config{}}
	for _, name := range names {
		switch name[0] {
		case 't':
			var t inventory.Task
			id := name[:2]
			if _, err := fmt.Sscanf(name[2:], "@%d", &t.Rev); err != nil {
				panic(err)
			}
			t.M = &swarmv1.Task{Id: id}
			a.Tasks[id] = t
		case 's':
			a.Secrets[name] = &swarmv1.Secret{Id: name}
		case 'c':
			a.Configs[name] = &swarmv1.Config{Id: name}
		}
	}
	return a
}

// TestChangesAddFilesBeforeTasksAndRemoveThemAfter also shows that an unchanged object is not sent.
func TestChangesAddFilesBeforeTasksAndRemoveThemAfter(t *testing.T) {
	for name, c := range map[string]struct {
		had, now []string
		want     []string
	}{
		"nothing":               {nil, nil, nil},
		"the same":              {[]string{"t1@5", "s1", "c1"}, []string{"t1@5", "s1", "c1"}, nil},
		"a first task":          {nil, []string{"t1@5", "s1", "c1"}, []string{"+s1", "+c1", "+t1"}},
		"the last task":         {[]string{"t1@5", "s1", "c1"}, nil, []string{"-t1", "-s1", "-c1"}},
		"a changed task":        {[]string{"t1@5", "s1"}, []string{"t1@6", "s1"}, []string{"+t1"}},
		"one task for another":  {[]string{"t1@5", "s1"}, []string{"t2@6", "s2"}, []string{"+s2", "+t2", "-t1", "-s1"}},
		"a task without a file": {[]string{"t1@5", "s1"}, []string{"t1@5"}, []string{"-s1"}},
	} {
		var got []string
		for _, ch := range changes(assigned(c.had...), assigned(c.now...)) {
			sign := map[swarmv1.AssignmentChange_AssignmentAction]string{swarmv1.AssignmentChange_UPDATE: "+", swarmv1.AssignmentChange_REMOVE: "-"}[ch.GetAction()]
			a := ch.GetAssignment()
			got = append(got, sign+a.GetTask().GetId()+a.GetSecret().GetId()+a.GetConfig().GetId())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTwoAddressesThatTakeASessionFromEachOtherAreClones, and an address that a node has moved to is none.
func TestTwoAddressesThatTakeASessionFromEachOtherAreClones(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		takes []take
		want  bool // of the last one
	}{
		"a move":              {[]take{{"b", "a", begin}}, false},
		"a move and back":     {[]take{{"b", "a", begin}, {"a", "b", begin.Add(time.Second)}}, false},
		"three takes":         {[]take{{"b", "a", begin}, {"a", "b", begin.Add(time.Second)}, {"b", "a", begin.Add(2 * time.Second)}}, true},
		"three moves onwards": {[]take{{"b", "a", begin}, {"c", "b", begin.Add(time.Second)}, {"d", "c", begin.Add(2 * time.Second)}}, false},
		"takes over a day":    {[]take{{"b", "a", begin}, {"a", "b", begin.Add(12 * time.Hour)}, {"b", "a", begin.Add(24 * time.Hour)}}, false},
		"just too far apart":  {[]take{{"b", "a", begin}, {"a", "b", begin.Add(time.Second)}, {"b", "a", begin.Add(takesTime)}}, false},
		"among others": {[]take{
			{"b", "a", begin}, {"c", "b", begin}, {"a", "b", begin.Add(time.Second)}, {"d", "a", begin.Add(time.Second)}, {"a", "b", begin.Add(2 * time.Second)},
		}, true},
	} {
		var st state
		var got bool
		for _, tk := range c.takes {
			got = st.takenLocked(tk)
		}
		if got != c.want {
			t.Errorf("%s: clones %v, want %v", name, got, c.want)
		}
	}
}

// TestOnlyTheLastTakesAreKept, however often a session is taken.
func TestOnlyTheLastTakesAreKept(t *testing.T) {
	var st state
	for i := range 10 * maxTakes {
		st.takenLocked(take{fmt.Sprint("to", i), "from", time.Unix(int64(i), 0)})
	}
	if len(st.takes) != maxTakes || st.takes[maxTakes-1].to != fmt.Sprint("to", 10*maxTakes-1) {
		t.Errorf("%d takes are kept, the last to %s", len(st.takes), st.takes[len(st.takes)-1].to)
	}
}

// TestARotationAddsAKeyOfEachSubsystemAndDropsTheOldest, and no key is used twice.
func TestARotationAddsAKeyOfEachSubsystemAndDropsTheOldest(t *testing.T) {
	var r ring
	seen := map[string]bool{}
	for n := uint64(1); n <= 3*keysEach; n++ {
		r.next()
		if r.Lamport != n || len(r.Keys) != int(2*min(n, keysEach)) {
			t.Fatalf("rotation %d: clock %d, %d keys", n, r.Lamport, len(r.Keys))
		}
		count := map[string]int{}
		for _, k := range r.Keys {
			count[k.Subsystem]++
			if len(k.Key) != 16 || k.Lamport+keysEach <= n || k.Lamport > n {
				t.Errorf("rotation %d: a key of %d bytes from rotation %d", n, len(k.Key), k.Lamport)
			}
		}
		if c := int(min(n, keysEach)); count["networking:gossip"] != c || count["networking:ipsec"] != c {
			t.Errorf("rotation %d: keys %v", n, count)
		}
		for _, k := range r.Keys[len(r.Keys)-2:] {
			if seen[string(k.Key)] {
				t.Errorf("rotation %d: a key is used again", n)
			}
			seen[string(k.Key)] = true
		}
	}
}

// TestRegistrationsBeyondTheLimitAreRefused, until the window has passed.
func TestRegistrationsBeyondTheLimitAreRefused(t *testing.T) {
	st := state{registered: time.Now()}
	for i := range registrations {
		if err := st.again("n1"); err != nil {
			t.Fatalf("registration %d: %v", i+1, err)
		}
	}
	last := st.registered
	if err := st.again("n1"); status.Code(err) != codes.Unavailable {
		t.Errorf("a registration too many: %v", err)
	}
	if !st.registered.Equal(last) {
		t.Error("a refused registration moves the window")
	}
	st.registered = time.Now().Add(-window - time.Second)
	if err := st.again("n1"); err != nil || st.attempts != 1 {
		t.Errorf("after the window: %v, %d attempts", err, st.attempts)
	}
}

// subscribed makes a subscription that waits for nodes.
func subscribed(follow bool, nodes ...string) *Subscription {
	s := &Subscription{
		msg:  &swarmv1.SubscriptionMessage{Options: &swarmv1.LogSubscriptionOptions{Follow: follow}, Selector: &swarmv1.LogSelector{}},
		done: make(chan struct{}), pending: map[string]bool{}, missing: map[string]bool{},
	}
	for _, n := range nodes {
		s.pending[n] = true
	}
	return s
}

func isDone(s *Subscription) bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// TestASubscriptionIsDoneWithItsLastNode, names the nodes that were cut off, and has no end while it follows.
func TestASubscriptionIsDoneWithItsLastNode(t *testing.T) {
	s := subscribed(false, "n1", "n2")
	s.finished("n1", false)
	if isDone(s) {
		t.Error("done before its last node")
	}
	s.finished("n3", true) // a node without a part in it
	s.finished("n2", true)
	s.finished("n2", true) // an end that comes twice
	if got := s.Missing(); !isDone(s) || !slices.Equal(got, []string{"n2"}) {
		t.Errorf("done %v, missing %q", isDone(s), got)
	}
	if s = subscribed(true, "n1"); isDone(s) {
		t.Error("done at once")
	}
	if s.finished("n1", false); isDone(s) {
		t.Error("a subscription that follows is done")
	}
}

// TestASubscriptionSelectsByTaskServiceOrNode.
func TestASubscriptionSelectsByTaskServiceOrNode(t *testing.T) {
	var task inventory.Task
	task.M = &swarmv1.Task{Id: "t1", ServiceId: "s1", NodeId: "n1"}
	for name, c := range map[string]struct {
		selector *swarmv1.LogSelector
		want     bool
	}{
		"its task":    {&swarmv1.LogSelector{TaskIds: []string{"t0", "t1"}}, true},
		"its service": {&swarmv1.LogSelector{ServiceIds: []string{"s1"}}, true},
		"its node":    {&swarmv1.LogSelector{NodeIds: []string{"n1"}}, true},
		"others":      {&swarmv1.LogSelector{TaskIds: []string{"s1"}, ServiceIds: []string{"n1"}, NodeIds: []string{"t1"}}, false},
		"nothing":     {&swarmv1.LogSelector{}, false},
		"no selector": {nil, false},
	} {
		s := subscribed(false)
		s.msg.Selector = c.selector
		if got := s.wants(task); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAsideReturnsTheErrorAndThePanic of its function, in the goroutine of the call.
func TestAsideReturnsTheErrorAndThePanic(t *testing.T) {
	failed := errors.New("it failed")
	if err := aside(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
	defer func() {
		if v := recover(); v != "it panicked" {
			t.Errorf("recovered %v", v)
		}
	}()
	_ = aside(func() error { panic("it panicked") })
	t.Error("the panic was swallowed")
}
