package wire_test

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/keeper/wire"
)

func TestFormats(t *testing.T) {
	line := wire.Formats("1.2.3+4.gabc")
	want := wire.Stated{OldestProtocol: wire.Oldest, Protocol: wire.Version, OldestHandover: wire.OldestHandover, Handover: wire.Handover, Release: "1.2.3+4.gabc"}
	for _, l := range []string{line, strings.TrimSuffix(line, "\n") + " records 7\n"} {
		if s, ok := wire.ParseFormats(l); !ok || s != want {
			t.Errorf("%q: %+v, %v", l, s, ok)
		}
	}
	for _, bad := range []string{
		"", "usage: longshore-keeper start DIR", "longshore-keeper protocol 1 5 handover 1 1 release", "longshore-keeper protocol 5 1 handover 1 1 release x",
		"longshore-keeper protocol 1 5 handover 2 1 release x", "longshore-keeper protocol 0 5 handover 1 1 release x", "longshore-keeper protocol 1 five handover 1 1 release x",
		"other protocol 1 5 handover 1 1 release x",
	} {
		if s, ok := wire.ParseFormats(bad); ok || s != (wire.Stated{}) {
			t.Errorf("%q: %+v, %v", bad, s, ok)
		}
	}
}

func FuzzParseFormats(f *testing.F) {
	f.Add(wire.Formats("1.0.0"))
	f.Add("longshore-keeper protocol 1 5 handover 1 1 release x more")
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := wire.ParseFormats(line); ok && (s.OldestProtocol < 1 || s.OldestProtocol > s.Protocol || s.OldestHandover < 1 || s.OldestHandover > s.Handover || s.Release == "") {
			t.Errorf("%q: %+v", line, s)
		}
	})
}
