package stages

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestUndoUnwindGoesBackwardsAndPastErrors(t *testing.T) {
	var s Undo
	var got []string
	bad := errors.New("stuck")
	for _, name := range []string{"a", "b", "c"} {
		s.Add(name, func(context.Context) error {
			got = append(got, name)
			if name == "b" {
				return bad
			}
			return nil
		})
	}
	err := s.Unwind(t.Context())
	if strings.Join(got, "") != "cba" || !errors.Is(err, bad) || !strings.Contains(err.Error(), "undo b: stuck") {
		t.Fatalf("order %v, err %v", got, err)
	}
	if err := s.Unwind(t.Context()); err != nil || len(got) != 3 {
		t.Fatalf("a second unwind did something: %v %v", got, err)
	}
}

func TestUndoReleaseForgets(t *testing.T) {
	var s Undo
	s.Add("a", func(context.Context) error { t.Error("undone"); return nil })
	s.Release()
	if err := s.Unwind(t.Context()); err != nil {
		t.Fatal(err)
	}
}
