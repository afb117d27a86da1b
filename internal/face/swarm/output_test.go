package swarm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// sec is a time at which tasks of these tests write.
func sec(n int) time.Time { return time.Date(2026, 11, 20, 10, 0, n, 0, time.UTC) }

// line is one of a task's log as the keeper writes it.
func line(n int, stream, tag, text string) string {
	return fmt.Sprintf("%s %s %s %s\n", sec(n).Format(time.RFC3339Nano), stream, tag, text)
}

func lineAt(at time.Time, text string) string {
	return fmt.Sprintf("%s stdout F %s\n", at.UTC().Format(time.RFC3339Nano), text)
}

// writes appends to a task's log, as the keeper does.
func (r *rig) writes(id string, lines ...string) {
	r.t.Helper()
	r.appends(r.logOf(id), lines...)
}

func (r *rig) appends(path string, lines ...string) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(strings.Join(lines, ""))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) logOf(id string) string { return r.container(id).Config.IO.Sinks[0].Path }

// runs starts a task.
func (r *rig) runs(id string) {
	r.t.Helper()
	r.Assign(swarmtest.Task(id, image, "sleep"))
	r.Reaches(id, swarmv1.TaskState_RUNNING)
}

func subscription(id string, o *swarmv1.LogSubscriptionOptions, sel *swarmv1.LogSelector) *swarmv1.SubscriptionMessage {
	return &swarmv1.SubscriptionMessage{Id: id, Selector: sel, Options: o}
}

func ofService() *swarmv1.LogSelector { return &swarmv1.LogSelector{ServiceIds: []string{"service"}} }

// publishes waits until the text of a subscription is so.
func (r *rig) publishes(id, want string) {
	r.t.Helper()
	got := ""
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s: got %q, want %q", id, got, want)
		}
	}()
	r.UntilPublished(id+" has all of it", func() bool {
		got = swarmtest.Text(r.Output(id))
		return len(got) >= len(want)
	})
	if got != want {
		r.t.Errorf("%s: got %q, want %q", id, got, want)
	}
}

// closes waits until the node has closed a subscription.
func (r *rig) closes(id string) {
	r.t.Helper()
	r.UntilPublished(id+" is closed", func() bool { _, closed := r.Published(id); return closed == 1 })
}

func TestEachLineHasTheAttributesThatTheLogOptionsName(t *testing.T) {
	r := newRig(t)
	r.join()
	task := swarmtest.Task("a", image, "sleep")
	task.GetSpec().GetContainer().Labels = map[string]string{"tier": "web"}
	task.GetSpec().LogDriver = &swarmv1.Driver{Name: "json-file", Options: map[string]string{"labels": "tier", "tag": "{{.Name}}"}}
	r.Assign(task)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.writes("a", line(1, "stdout", "F", "one"), line(2, "stdout", "F", "two"))
	r.Subscribe(subscription("all", nil, ofService()))
	r.closes("all")
	r.publishes("all", "one\ntwo\n")
	for _, m := range r.Output("all") {
		got := map[string]string{}
		for _, a := range m.GetAttrs() {
			got[a.GetKey()] = a.GetValue()
		}
		if len(got) != 2 || got["tier"] != "web" || !strings.HasSuffix(got["tag"], ".a") {
			t.Errorf("attributes: %v", m.GetAttrs())
		}
	}
}

// TestOutputThatIsThere: a subscription without follow gets its lines, each with its task, and then
// ends, also when there is nothing.
func TestOutputThatIsThere(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	r.writes("a", line(1, "stdout", "F", "one"), line(2, "stderr", "F", "two"), line(3, "stdout", "P", "thr"), line(3, "stdout", "F", "ee"), line(4, "stderr", "P", "four"))
	const all = "one\ntwo\nthree\nfour"
	r.Subscribe(subscription("all", nil, ofService()))
	r.closes("all")
	r.publishes("all", all)
	for i, m := range r.Output("all") {
		c := m.GetContext()
		if c.GetServiceId() != "service" || c.GetTaskId() != "a" || c.GetNodeId() != r.face.Status().NodeID || m.GetTimestamp().AsTime() != sec(i+1) {
			t.Errorf("message %d: %v", i, m)
		}
		if want := swarmv1.LogStream(1 + i%2); m.GetStream() != want {
			t.Errorf("message %d is of %s, want %s", i, m.GetStream(), want)
		}
	}
	stderr := []swarmv1.LogStream{swarmv1.LogStream_LOG_STREAM_STDERR}
	for id, c := range map[string]struct {
		o    *swarmv1.LogSubscriptionOptions
		sel  *swarmv1.LogSelector
		want string
	}{
		"by the task":          {nil, &swarmv1.LogSelector{TaskIds: []string{"x", "a"}}, all},
		"by the node":          {nil, &swarmv1.LogSelector{NodeIds: []string{r.face.Status().NodeID}}, all},
		"another task":         {nil, &swarmv1.LogSelector{TaskIds: []string{"b"}}, ""},
		"nobody":               {nil, nil, ""},
		"stderr":               {&swarmv1.LogSubscriptionOptions{Streams: stderr}, ofService(), "two\nfour"},
		"the last line":        {&swarmv1.LogSubscriptionOptions{Tail: -2}, ofService(), "three\nfour"}, // four is no line yet
		"no line":              {&swarmv1.LogSubscriptionOptions{Tail: -1}, ofService(), ""},
		"more than there are":  {&swarmv1.LogSubscriptionOptions{Tail: -1 << 62}, ofService(), all},
		"without the first":    {&swarmv1.LogSubscriptionOptions{Tail: 1}, ofService(), "two\nthree\nfour"},
		"without more of them": {&swarmv1.LogSubscriptionOptions{Tail: 9}, ofService(), ""},
		"since":                {&swarmv1.LogSubscriptionOptions{Since: timestamppb.New(sec(3))}, ofService(), "three\nfour"},
	} {
		r.Subscribe(subscription(id, c.o, c.sel))
		r.closes(id)
		r.publishes(id, c.want)
	}
	// Nothing is sent again, as long as other nodes have not closed theirs.
	if streams, closed := r.Published("all"); streams != 1 || closed != 1 {
		t.Errorf("the first subscription has %d streams, %d of them closed", streams, closed)
	}
}

// TestOutputIsFollowed across rotation, to tasks that come later, after their ends, and
// until the manager closes the subscription.
func TestOutputIsFollowed(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	r.writes("a", line(1, "stdout", "F", "before"))
	r.Subscribe(subscription("f", &swarmv1.LogSubscriptionOptions{Follow: true, Tail: -1}, ofService()))
	r.Subscribe(subscription("all", &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	r.publishes("all", "before\n")
	want := ""
	say := func(id, text string) {
		t.Helper()
		r.writes(id, line(2, "stdout", "F", text))
		want += text + "\n"
		r.publishes("all", "before\n"+want)
	}
	// The other follower began at an end that is not known here: by now, or later.
	for i := 0; len(r.Output("f")) == 0; i++ {
		say("a", fmt.Sprint("more", i))
	}
	var first string
	r.UntilPublished("f has what was said last", func() bool {
		first = swarmtest.Text(r.Output("f"))
		return strings.HasSuffix(want, first[max(0, strings.LastIndexByte(strings.TrimSuffix(first, "\n"), '\n')):])
	})
	if strings.Contains(first, "before") || !strings.HasSuffix("before\n"+want, first) {
		t.Errorf("from the end on: %q", first)
	}
	if err := os.Rename(r.logOf("a"), r.logOf("a")+".1"); err != nil {
		t.Fatal(err)
	}
	say("a", "rotated")

	r.runs("b")
	say("b", "later")
	r.Supervisor.Exit(core.Ref{Container: r.container("b").ID}, 0)
	r.Reaches("b", swarmv1.TaskState_COMPLETE)
	r.Remove("b")
	r.gone("b")
	say("a", "after its end")
	last := r.Output("all")
	if task := last[len(last)-2].GetContext().GetTaskId(); task != "b" {
		t.Errorf("what b said is of %q", task)
	}
	// A manager takes no more output of a subscription that is over, but for its close.
	r.UntilPublished("f has it all", func() bool { return strings.HasSuffix(swarmtest.Text(r.Output("f")), "after its end\n") })
	for _, id := range []string{"all", "f"} {
		r.Unsubscribe(id)
		r.closes(id)
	}
}

// TestOutputOverSessions: followed output continues in the next session, without a gap and nothing
// twice, also with another agent.
func TestOutputOverSessions(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	r.Subscribe(subscription("f", &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	r.writes("a", line(1, "stdout", "F", "one"))
	r.publishes("f", "one\n")
	want := "one\n"
	for i, forget := range []bool{false, true} {
		r.Drop(forget)
		r.writes("a", line(2, "stdout", "F", fmt.Sprint("two", i)))
		want += fmt.Sprintf("two%d\n", i)
		r.publishes("f", want)
		r.Until("there is a session again", func() bool { return !forget || r.Sessions() == 2 })
	}
	// Another agent continues there too.
	path := r.logOf("a")
	r.down()
	r.appends(path, line(2, "stdout", "F", "three"), line(4, "stderr", "P", "fo"))
	r.start()
	r.publishes("f", "one\ntwo0\ntwo1\nthree\n")
	r.runs("b")
	r.writes("b", line(5, "stdout", "F", "b"))
	r.publishes("f", "one\ntwo0\ntwo1\nthree\nb\n")
	r.down()
	r.appends(path, line(4, "stderr", "F", "ur"))
	r.start()
	r.publishes("f", "one\ntwo0\ntwo1\nthree\nb\nfour\n")
}

// TestOutputAfterADeath: a killed agent had kept its place of a moment before. Lines sent since
// then are sent again, and all of them when nothing could be kept.
func TestOutputAfterADeath(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	r.writes("a", line(1, "stdout", "F", "old"))
	for id, tail := range map[string]int64{"all": 0, "new": -1} {
		r.Subscribe(subscription(id, &swarmv1.LogSubscriptionOptions{Follow: true, Tail: tail}, ofService()))
	}
	r.publishes("all", "old\n")
	file := filepath.Join(r.state, "output.json")
	var before []byte
	// The second line says when the first one was sent: N is how many of a time were.
	roottest.Eventually(t, "it is kept how far both are", func() bool {
		before, _ = os.ReadFile(file)
		var kept map[string]map[string]struct {
			At time.Time
			N  int
		}
		path := r.logOf("a")
		return json.Unmarshal(before, &kept) == nil && kept["all"][path].N == 1 && !kept["new"][path].At.IsZero()
	})
	now := time.Now().Add(time.Hour) // after "new" has begun, whether it reads yet or not
	r.writes("a", lineAt(now, "one"))
	r.publishes("all", "old\none\n")
	path := r.logOf("a")
	restart := func(kept []byte, text string) {
		t.Helper()
		r.down()
		if err := os.WriteFile(file, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		r.appends(path, lineAt(now, text))
		r.start()
	}
	restart(before, "two")
	r.publishes("all", "old\none\none\ntwo\n")
	r.UntilPublished("new has all since it began", func() bool { return strings.HasSuffix(swarmtest.Text(r.Output("new")), "one\ntwo\n") })
	if text := swarmtest.Text(r.Output("new")); strings.Contains(text, "old") {
		t.Errorf("new has %q", text)
	}
	restart([]byte("{"), "three")
	r.publishes("all", "old\none\none\ntwo\nold\none\ntwo\nthree\n")
	for _, id := range []string{"all", "new"} {
		r.Unsubscribe(id)
	}
	roottest.Eventually(t, "nothing is kept of what is over", func() bool {
		data, _ := os.ReadFile(file)
		return string(data) == "{}"
	})
}

// TestOutputThatIsNotKept gives one notice instead.
func TestOutputThatIsNotKept(t *testing.T) {
	r := newRig(t)
	r.join()
	task := swarmtest.Task("a", image, "sleep")
	task.LogDriver = &swarmv1.Driver{Name: "none"}
	r.Subscribe(subscription("f", &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	r.Assign(task)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Subscribe(subscription("now", nil, ofService()))
	r.Subscribe(subscription("out", &swarmv1.LogSubscriptionOptions{Streams: []swarmv1.LogStream{swarmv1.LogStream_LOG_STREAM_STDOUT}}, ofService()))
	const text = "longshore: the output of this task is not kept: its log driver is none\n"
	r.publishes("f", text)
	r.publishes("now", text)
	if s := r.Output("now")[0].GetStream(); s != swarmv1.LogStream_LOG_STREAM_STDERR {
		t.Errorf("it is of %s", s)
	}
	r.closes("now")
	r.closes("out")
	r.publishes("out", "")
}

// TestManagersWithoutOutput: one that knows no subscriptions keeps its session, and one that
// refuses a stream gets it again while that may pass.
func TestManagersWithoutOutput(t *testing.T) {
	r := newRig(t)
	r.Hook(func(call string) error {
		if call == "ListenSubscriptions" {
			return status.Error(codes.Unimplemented, "unknown service")
		}
		return nil
	})
	r.join()
	r.runs("a")
	if n := r.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	refused := 0
	r.Hook(func(call string) error {
		if call == "PublishLogs" {
			if refused++; refused < 3 {
				return status.Error(codes.Unavailable, "no leader")
			}
		}
		return nil
	})
	r.Drop(false)
	r.writes("a", line(1, "stdout", "F", "one"))
	r.Subscribe(subscription("now", nil, ofService()))
	r.closes("now")
	r.publishes("now", "one\n")
}

// TestASlowManager: it holds up no task and little memory, for any output, and gets all of it
// later.
func TestASlowManager(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	release := r.HoldOutput()
	defer release()
	const follows, kib = 30, 1024
	for i := range follows {
		r.Subscribe(subscription(fmt.Sprint("f", i), &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	}
	before := heap()
	const at = 64
	text := strings.Repeat(line(1, "stdout", "F", strings.Repeat("x", 1000)), at)
	for range kib / at {
		r.writes("a", text)
	}
	// Others are served meanwhile.
	r.runs("b")
	r.Want("b", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("b", swarmv1.TaskState_SHUTDOWN)
	if grown := int64(heap()-before) >> 20; grown > 20 {
		t.Errorf("%d MiB for %d subscriptions that are not read", grown, follows)
	}
	release()
	for i := range follows {
		id := fmt.Sprint("f", i)
		r.UntilPublished(id, func() bool { return len(r.Output(id)) == kib })
	}
}

// heap returns the allocated bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManySubscriptions: a thousand that wait cost little, those beyond are closed, and
// when the member leaves nothing of them is left.
func TestManySubscriptions(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	before := heap()
	const limit = 1024
	for i := range limit + 2 {
		r.Subscribe(subscription(fmt.Sprintf("f%04d", i), &swarmv1.LogSubscriptionOptions{Follow: true}, ofService()))
	}
	for i := limit; i < limit+2; i++ {
		r.closes(fmt.Sprintf("f%04d", i))
	}
	r.writes("a", line(1, "stdout", "F", "one"))
	for i := range limit {
		r.publishes(fmt.Sprintf("f%04d", i), "one\n")
	}
	if grown := int64(heap()-before) >> 20; grown > 128 {
		t.Errorf("%d MiB for %d subscriptions, the manager's side among it", grown, limit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.face.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	r.clean()
}
