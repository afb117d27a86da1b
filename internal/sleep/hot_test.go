package sleep

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/sleep/pages"
)

// TestTouchedPages: a page that threads have waited for is among the first ones of the next wakes, and is forgotten later.
func TestTouchedPages(t *testing.T) {
	s := New(Options{State: t.TempDir()})
	s.fellAsleep("c", []pages.Touch{{Pid: 1, Addr: 4096}})
	page := pages.Touch{Pid: 1, Addr: 8192}
	s.hot["c"] = s.touched("c", []pages.Touch{page, page})
	first := func() (all []pages.Touch) {
		t.Helper()
		f, err := s.first("c")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if err := json.NewDecoder(f).Decode(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if err := os.MkdirAll(s.state("c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := first(); !slices.Equal(got, []pages.Touch{page}) {
		t.Errorf("after the first wake %v come first", got)
	}
	s.fellAsleep("c", []pages.Touch{{Pid: 1, Addr: 4096}})
	if got := first(); len(got) != 2 || got[0].Addr != 4096 {
		t.Errorf("after the second sleep %v come first", got)
	}
	for range forgotten {
		s.hot["c"] = s.touched("c", nil)
	}
	if n := len(s.hot["c"].touched); n > 0 {
		t.Errorf("%d pages are never forgotten", n)
	}
}
