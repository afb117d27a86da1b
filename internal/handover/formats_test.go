package handover_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/handover"
)

func TestStatement(t *testing.T) {
	list := []handover.Format{{Name: "durable.db", Oldest: 1, Number: 3}, {Name: "board", Oldest: 2, Number: 2}}
	release, got, err := handover.ParseStatement(handover.State("1.2", list))
	if err != nil || release != "1.2" || !slices.Equal(got, list) {
		t.Errorf("%s %v, %v", release, got, err)
	}
	if _, got, err := handover.ParseStatement("longshore-formats release 9 more\nboard 2 2 more\n"); err != nil || !slices.Equal(got, list[1:]) {
		t.Errorf("of a later release: %v, %v", got, err)
	}
	for _, bad := range []string{"", "longshore 1", "longshore-formats release", "longshore-formats release 1\nx 1", "longshore-formats release 1\nx 2 1", "longshore-formats release 1\nx 0 1", "longshore-formats release 1\nx 1 y", "longshore-formats release 1\nx 1 1\nx 1 1", "longshore-formats release 1" + strings.Repeat("\nx 1 1", 100)} {
		if _, _, err := handover.ParseStatement(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestReadable(t *testing.T) {
	present := []handover.Format{{Name: "a", Oldest: 1, Number: 4}, {Name: "b", Oldest: 1, Number: 1}}
	for _, c := range []struct {
		next []handover.Format
		says string
	}{
		{[]handover.Format{{Name: "a", Oldest: 4, Number: 9}, {Name: "b", Oldest: 1, Number: 1}, {Name: "c", Oldest: 7, Number: 7}}, ""},
		{[]handover.Format{{Name: "a", Oldest: 3, Number: 3}, {Name: "b", Oldest: 1, Number: 1}}, "longshore of release 0.1 reads format 3 of a; this node has 4"},
		{[]handover.Format{{Name: "a", Oldest: 5, Number: 6}, {Name: "b", Oldest: 1, Number: 1}}, "longshore of release 0.1 reads the formats 5 to 6 of a; this node has 4"},
		{[]handover.Format{{Name: "a", Oldest: 4, Number: 4}}, "longshore of release 0.1 does not know the format of b; this node has 1"},
	} {
		err := handover.Readable("0.1", c.next, present)
		if (err == nil) != (c.says == "") || err != nil && (!errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), c.says)) {
			t.Errorf("%v: %v, want %q", c.next, err, c.says)
		}
	}
}

func FuzzParseStatement(f *testing.F) {
	f.Add("longshore-formats release 1\na 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		release, list, err := handover.ParseStatement(text)
		if err != nil {
			return
		}
		if again, got, err := handover.ParseStatement(handover.State(release, list)); err != nil || again != release || !slices.Equal(got, list) {
			t.Errorf("%q: %v %v, and again %v, %v", text, release, list, got, err)
		}
	})
}
