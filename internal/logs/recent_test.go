package logs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// said is Read's output for a container, an entry a word: the stream's fourth letter, the text, and
// a + when the line continues.
func said(t *testing.T, r *Recent, o Options) string {
	t.Helper()
	var list []string
	err := r.Read(t.Context(), "c", o, func(e Entry) error {
		word := e.Stream[3:4] + ":" + string(e.Text)
		if e.Partial {
			word += "+"
		}
		list = append(list, word)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

func TestRecent(t *testing.T) {
	r := NewRecent()
	if got := said(t, r, Options{}); got != "" {
		t.Errorf("before anything: %q", got)
	}
	r.Add("c", "stdout", []byte("one\ntw"))
	r.Add("c", "stderr", []byte("bad\n"))
	r.Add("other", "stdout", []byte("not mine\n"))
	r.Add("c", "stdout", []byte("o\n\nopen"))
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "o:one e:bad o:two o: o:open+"},
		{Options{Tail: 2}, "o:two o: o:open+"},
		{Options{Tail: 100}, "o:one e:bad o:two o: o:open+"},
		{Options{Tail: -1}, "o:open+"},
		{Options{Since: time.Now().Add(time.Hour)}, ""},
		{Options{Until: time.Now().Add(-time.Hour)}, ""},
	} {
		if got := said(t, r, c.o); got != c.want {
			t.Errorf("%+v: %q, want %q", c.o, got, c.want)
		}
	}
	stop := errors.New("stop")
	if err := r.Read(t.Context(), "c", Options{}, func(Entry) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the caller's: %v", err)
	}
	r.Drop("c")
	if got := said(t, r, Options{}); got != "" {
		t.Errorf("after it was dropped: %q", got)
	}
}

// TestRecentIsBounded: by bytes, by lines, and within a line.
func TestRecentIsBounded(t *testing.T) {
	r := NewRecent()
	for i := range 10_000 {
		r.Add("c", "stdout", fmt.Appendf(nil, "%d\n", i))
	}
	got := strings.Fields(said(t, r, Options{}))
	if len(got) > recentBytes/recentCost || got[len(got)-1] != "o:9999" {
		t.Errorf("%d lines are kept, the last one is %s", len(got), got[len(got)-1])
	}
	r.Add("c", "stderr", []byte(strings.Repeat("x", 10*recentBytes)))
	all := said(t, r, Options{})
	if len(all) > recentBytes+recentLine || !strings.HasSuffix(all, "x+") {
		t.Errorf("%d bytes are kept, to the end %s", len(all), all[len(all)-10:])
	}
	r.Add("c", "stderr", []byte("\n"))
	if c := r.of["c"]; c.cost > recentBytes || len(c.open["stderr"]) != 0 {
		t.Errorf("kept %d", c.cost)
	}
}

// TestRecentIsFollowed from one entry to the next, until the container has ended.
func TestRecentIsFollowed(t *testing.T) {
	r := NewRecent()
	r.Add("c", "stdout", []byte("before\n"))
	ended, got := make(chan struct{}), make(chan string, 10)
	done := make(chan error, 1)
	go func() {
		done <- r.Read(t.Context(), "c", Options{Follow: true, Ended: ended}, func(e Entry) error { got <- string(e.Text); return nil })
	}()
	want := func(text string) {
		t.Helper()
		if g := <-got; g != text {
			t.Errorf("%q, want %q", g, text)
		}
	}
	want("before")
	r.Add("c", "stdout", []byte("then\nla"))
	want("then")
	r.Add("c", "stdout", []byte("st"))
	close(ended)
	want("last")
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the client has gone")
	cancel(why)
	if err := r.Read(ctx, core.ID("nobody"), Options{Follow: true}, func(Entry) error { return nil }); !errors.Is(err, why) {
		t.Errorf("a client that goes: %v", err)
	}
}
