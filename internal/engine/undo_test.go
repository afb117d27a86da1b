package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestUndoUnwindGoesBackwardsAndPastErrors(t *testing.T) {
	var s undoStack
	var got []string
	bad := errors.New("stuck")
	for _, name := range []string{"a", "b", "c"} {
		s.add(name, func(context.Context) error {
			got = append(got, name)
			if name == "b" {
				return bad
			}
			return nil
		})
	}
	err := s.unwind(t.Context())
	if strings.Join(got, "") != "cba" || !errors.Is(err, bad) || !strings.Contains(err.Error(), "undo b: stuck") {
		t.Fatalf("order %v, err %v", got, err)
	}
	if err := s.unwind(t.Context()); err != nil || len(got) != 3 {
		t.Fatalf("a second unwind did something: %v %v", got, err)
	}
}

func TestUndoReleaseForgets(t *testing.T) {
	var s undoStack
	s.add("a", func(context.Context) error { t.Error("undone"); return nil })
	s.release()
	if err := s.unwind(t.Context()); err != nil {
		t.Fatal(err)
	}
}
