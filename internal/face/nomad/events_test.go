package nomad_test

import (
	"context"
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
)

func TestWhyATaskEndedIsTold(t *testing.T) {
	r := newRig(t, nil)
	next := r.listen()
	task := r.task("aaaaaaaa", nil)
	_, c := r.run(task)
	if e := next("Container started"); e.GetAnnotations()["container"] != c.ID.Short() || e.GetTaskId() != task.GetId() {
		t.Errorf("event %v", e)
	}
	r.Supervisor.OOM(main(c), 64<<20, 1, 1)
	w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
	if err != nil || !w.GetResult().GetOomKilled() || w.GetResult().GetExitCode() != 137 || w.GetErr() == "" {
		t.Errorf("wait %v, %v", w, err)
	}
	e := next(w.GetErr())
	if e.GetAllocId() != allocID || e.GetTaskName() != "web" || e.GetAnnotations()["oom"] != "true" || e.GetAnnotations()["exit_status"] != "137" {
		t.Errorf("event %v", e)
	}
}

// listen opens a stream of events, waits until it works, and returns a function for the next
// matching one.
func (r *rig) listen() (next func(match string) *nomaddriver.DriverTaskEvent) {
	r.t.Helper()
	events, err := r.Driver.TaskEvents(r.t.Context(), &nomaddriver.TaskEventsRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	next = func(match string) *nomaddriver.DriverTaskEvent {
		r.t.Helper()
		for {
			e, err := events.Recv()
			if err != nil {
				r.t.Fatal(err)
			}
			if strings.Contains(e.GetMessage(), match) {
				return e
			}
		}
	}
	// It works once it reports a pull.
	pulling, enough := context.WithCancel(r.t.Context())
	failing := r.task("pull", map[string]any{"image": "none:1"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pulling.Err() == nil {
			_, _ = r.Driver.StartTask(pulling, &nomaddriver.StartTaskRequest{Task: failing})
		}
	}()
	if e := next("Downloading image"); e.GetAnnotations()["image"] != "none:1" || e.GetAllocId() != allocID || e.GetTaskName() != "web" {
		r.t.Errorf("event %v", e)
	}
	enough()
	<-done
	return next
}

// TestWhyATaskEndedWhileTheAgentWasAwayIsTold: once, when there is an agent again.
func TestWhyATaskEndedWhileTheAgentWasAwayIsTold(t *testing.T) {
	r := newRig(t, nil)
	next := r.listen()
	before, away, after := r.task("aaaaaaaa", nil), r.task("bbbbbbbb", nil), r.task("cccccccc", nil)
	_, c := r.run(before)
	r.Supervisor.Exit(main(c), 1)
	if e := next("exited with code"); e.GetAnnotations()["exit_status"] != "1" {
		t.Errorf("before: %v", e)
	}
	_, c = r.run(away)
	r.stop()
	r.Stop()
	r.Supervisor.Exit(main(c), 2)
	r.start()
	_, c = r.run(after)
	r.Supervisor.Exit(main(c), 3)
	for _, want := range []*nomaddriver.TaskConfig{away, after} {
		if e := next("exited with code"); e.GetTaskId() != want.GetId() {
			t.Errorf("told is %v, want the end of %s", e, want.GetId())
		}
	}
}

// TestEventsGoToTheDriverThatStartedTheTask: of two plugin blocks, each has the events of its own
// tasks.
func TestEventsGoToTheDriverThatStartedTheTask(t *testing.T) {
	r := newRig(t, nil)
	ours := r.listen()
	second := nomadtest.Relay(t, "-name=docker")
	second.Configure(t, map[string]any{"socket": r.socket}, nil)
	first := r.Client
	r.Client = second
	dockers := r.listen()
	of := map[string]string{}
	for _, start := range []struct {
		suffix string
		by     *nomadtest.Client
	}{{"bbbbbbbb", second}, {"aaaaaaaa", first}} { // so the stream of ours would have the other one's event first
		r.Client = start.by
		task := r.task(start.suffix, nil)
		_, ct := r.run(task)
		of[start.suffix] = task.GetId()
		r.Supervisor.Exit(main(ct), 3)
	}
	for suffix, next := range map[string]func(string) *nomaddriver.DriverTaskEvent{"aaaaaaaa": ours, "bbbbbbbb": dockers} {
		for _, match := range []string{"Container started", "exited with code"} {
			if e := next(match); e.GetTaskId() != of[suffix] {
				t.Errorf("%s: %q of task %s, want %s", suffix, match, e.GetTaskId(), of[suffix])
			}
		}
	}
}
