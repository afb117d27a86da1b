package machine

import (
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("cpu  10 1 5 80 2 1 1 0 7 0\ncpu0 1 1 1 1 1 1 1 1\n"))
	if err != nil || got != (ticks{all: 100, idle: 82}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu a 2 3 4 5 6 7 8"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestAMachineThatIsNotQuiet(t *testing.T) {
	busy, quiet := Host{Busy: 0.5}, Host{Busy: 0.01}
	var out strings.Builder
	if err := busy.Quiet(&out, true); err == nil || out.Len() > 0 {
		t.Errorf("a busy machine is accepted: %v, %q", err, out.String())
	}
	if err := busy.Quiet(&out, false); err != nil || !strings.Contains(out.String(), "others use 50 %") {
		t.Errorf("%v, %q", err, out.String())
	}
	out.Reset()
	if err := quiet.Quiet(&out, true); err != nil || out.Len() > 0 {
		t.Errorf("a quiet machine: %v, %q", err, out.String())
	}
}
