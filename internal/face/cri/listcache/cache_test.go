package listcache

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func all(*int) bool { return true }

func TestEachObjectIsMadeOnce(t *testing.T) {
	var m Cache[int, string]
	made := 0
	text := func(n *int) (string, error) { made++; return fmt.Sprint(*n), nil }
	a, b := new(1), new(2)
	for range 3 {
		got, err := m.Of([]*int{a, b}, all, text)
		if err != nil || !slices.Equal(got, []string{"1", "2"}) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if made != 2 {
		t.Errorf("made %d, want 2", made)
	}
	got, err := m.Of([]*int{a, new(2)}, func(n *int) bool { return *n == 2 }, text)
	if err != nil || !slices.Equal(got, []string{"2"}) || made != 3 {
		t.Errorf("%q, %v, made %d: one that was replaced is another one", got, err, made)
	}
}

func TestWhatHasGoneIsForgotten(t *testing.T) {
	var m Cache[int, int]
	for i := range 10 * slack {
		if _, err := m.Of([]*int{&i}, all, func(n *int) (int, error) { return *n, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.kept) > 2+slack+1 {
		t.Errorf("%d kept of 1", len(m.kept))
	}
}

func TestAnErrorIsNotKept(t *testing.T) {
	var m Cache[int, int]
	one, broken := new(1), errors.New("broken")
	if _, err := m.Of([]*int{one}, all, func(*int) (int, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Fatalf("%v, want %v", err, broken)
	}
	if got, err := m.Of([]*int{one}, all, func(*int) (int, error) { return 7, nil }); err != nil || !slices.Equal(got, []int{7}) {
		t.Errorf("%v, %v", got, err)
	}
}
