package assignment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// message reads "complete >1 +t1 +s1" and "1>2 -t1 +c1": t is a task, s a secret, c a
// config, v a volume; + an update, - a removal.
func message(text string) *swarmv1.AssignmentsMessage {
	m := &swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_INCREMENTAL}
	for _, w := range strings.Fields(text) {
		if w == "complete" {
			m.Type = swarmv1.AssignmentsMessage_COMPLETE
			continue
		}
		if from, to, ok := strings.Cut(w, ">"); ok {
			m.AppliesTo, m.ResultsIn = from, to
			continue
		}
		a, id := &swarmv1.Assignment{}, w[1:]
		switch w[1] {
		case 't':
			a.Item = &swarmv1.Assignment_Task{Task: &swarmv1.Task{Id: id}}
		case 's':
			a.Item = &swarmv1.Assignment_Secret{Secret: &swarmv1.Secret{Id: id}}
		case 'c':
			a.Item = &swarmv1.Assignment_Config{Config: &swarmv1.Config{Id: id}}
		case 'v':
			a.Item = &swarmv1.Assignment_Volume{Volume: &swarmv1.VolumeAssignment{Id: id}}
		}
		action := swarmv1.AssignmentChange_UPDATE
		if w[0] == '-' {
			action = swarmv1.AssignmentChange_REMOVE
		}
		m.Changes = append(m.Changes, &swarmv1.AssignmentChange{Assignment: a, Action: action})
	}
	return m
}

// said is a change as the tables have it.
func said(c Change, err error) string {
	if err != nil {
		return err.Error()
	}
	var words []string
	for _, t := range c.Tasks {
		words = append(words, "+"+t.GetId())
	}
	for _, id := range c.Removed {
		words = append(words, "-"+id)
	}
	for _, v := range c.Volumes {
		words = append(words, "+"+v.GetId())
	}
	for _, v := range c.VolumesRemoved {
		words = append(words, "-"+v.GetId())
	}
	if len(c.Ignored) > 0 {
		words = append(words, fmt.Sprint("ignored ", len(c.Ignored)))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestStreams(t *testing.T) {
	gap := ErrGap.Error()
	for name, steps := range map[string][][2]string{ // message, its effect
		"one after the other": {{"complete >1 +t1 +t2", "+t1 +t2"}, {"1>2 +t3", "+t3"}, {"2>3 -t1", "-t1"}, {"3>4 +t2", "+t2"}, {"4>5 -t1", ""}},
		"a gap":               {{"complete >1 +t1", "+t1"}, {"2>3 +t2", gap}, {"1>2 +t3", "+t3"}},
		"no beginning":        {{"1>2 +t1", gap}, {">1 +t1", gap}, {"complete >1", ""}},
		"another stream":      {{"complete >1 +t1 +t2", "+t1 +t2"}, {"open", ""}, {"1>2 +t3", gap}, {"complete >1 +t1", "+t1 -t2"}},
		"all is gone":         {{"complete >1 +t1 +t2", "+t1 +t2"}, {"open", ""}, {"complete >1", "-t1 -t2"}},
		"replaced at once":    {{"complete >1 +t1", "+t1"}, {"1>2 +t1 -t1", "+t1 -t1"}},
		"removed in complete": {{"complete >1 -t1 +t1 -t2", "+t1"}},
		"twice":               {{"complete >1 +t1 +t1", "+t1 ignored 1"}},
		"a volume":            {{"complete >1 +v1 +t1", "+t1 +v1"}, {"1>2 -v1", "-v1"}, {"open", ""}, {"complete >1 -v1", "-t1 -v1"}},
		"before the start":    {{"resume t1 t2", ""}, {"complete >1 +t2", "+t2 -t1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var s Set
			for _, st := range steps {
				if ids, ok := strings.CutPrefix(st[0], "resume "); ok {
					s.Resume(strings.Fields(ids)...)
					continue
				}
				if st[0] == "open" {
					s.Opened()
					continue
				}
				if got := said(s.Apply(message(st[0]))); got != st[1] {
					t.Errorf("%s: %q, want %q", st[0], got, st[1])
				}
			}
		})
	}
}

// TestWhatTasksNeed: secrets and configs apply in any order in a message, and a complete message
// removes those that it does not name.
func TestWhatTasksNeed(t *testing.T) {
	var s Set
	if s.Known() || s.Secret("s1", "t1") != nil || s.Config("c1") != nil {
		t.Error("the empty set knows something")
	}
	if _, err := s.Apply(message("complete >1 +t1 +s1 +c1")); err != nil || !s.Known() || s.Secret("s1", "t1") == nil || s.Config("c1") == nil {
		t.Errorf("%v, %v, %v", err, s.Secret("s1", "t1"), s.Config("c1"))
	}
	if _, err := s.Apply(message("1>2 +s1.t2 -s1")); err != nil || s.Secret("s1", "t1") != nil || s.Secret("s1", "t2").GetId() != "s1.t2" {
		t.Errorf("%v, %v, %v", err, s.Secret("s1", "t1"), s.Secret("s1", "t2"))
	}
	if _, err := s.Apply(message("7>8 -c1 -s1.t2")); !errors.Is(err, ErrGap) || s.Config("c1") == nil || s.Secret("s1", "t2") == nil {
		t.Errorf("a message that does not follow: %v, %v, %v", err, s.Config("c1"), s.Secret("s1", "t2"))
	}
	s.Opened()
	if _, err := s.Apply(message("complete >1 +t1")); err != nil || s.Config("c1") != nil || s.Secret("s1", "t2") != nil {
		t.Errorf("%v, %v, %v", err, s.Config("c1"), s.Secret("s1", "t2"))
	}
}

func TestTasksWithoutAssignments(t *testing.T) {
	var s Set
	s.Resume("t1")
	c, err := s.Apply(OfTasks(&swarmv1.TasksMessage{Tasks: []*swarmv1.Task{{Id: "t2"}, {}}}))
	if got := said(c, err); got != "+t2 -t1 ignored 1" || !s.Known() {
		t.Errorf("%q, known %v", got, s.Known())
	}
	if got := said(s.Apply(OfTasks(&swarmv1.TasksMessage{}))); got != "-t2" {
		t.Errorf("%q", got)
	}
}

// FuzzApply: a set that refuses a message is as it was, and each removed item existed.
func FuzzApply(f *testing.F) {
	for _, text := range []string{"complete >1 +t1 +s1", "1>2 -t1", "9>9 +c1 -v1", ""} {
		data, err := proto.Marshal(message(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, data)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var s Set
		had := map[string]bool{}
		for _, data := range [][]byte{first, second} {
			m := &swarmv1.AssignmentsMessage{}
			if proto.Unmarshal(data, m) != nil {
				return
			}
			before := s.reference
			c, err := s.Apply(m)
			if err != nil && (s.reference != before || said(c, nil) != "") {
				t.Fatalf("a message that was refused has changed something: %v", c)
			}
			for _, id := range c.Removed {
				if !had[id] {
					t.Fatalf("task %q is removed and was not there", id)
				}
				delete(had, id)
			}
			for _, task := range c.Tasks {
				had[task.GetId()] = true
			}
		}
	})
}
