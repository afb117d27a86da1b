package chaos

import (
	"bytes"
	"testing"
)

func TestReassembleUndoesTheFormat(t *testing.T) {
	log := "2026-01-02T03:04:05.000000006Z stdout P ab\n2026-01-02T03:04:05.1Z stderr F x y\n2026-01-02T03:04:05.2Z stdout F c\n"
	out, errs, err := reassemble([]byte(log))
	if err != nil || string(out) != "abc\n" || string(errs) != "x y\n" {
		t.Errorf("%q %q %v", out, errs, err)
	}
	for _, bad := range []string{"torn", "2026-01-02T03:04:05.2Z stdout F c", "2026-01-02T03:04:05.2Z stdin F c\n", "x stdout F c\n"} {
		if _, _, err := reassemble([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDifferencesAreSeen(t *testing.T) {
	out, errs := expected(7, 500)
	if len(out) == 0 || len(errs) == 0 {
		t.Fatal("a stream is empty")
	}
	if d := differ(out, out); d != "" {
		t.Error(d)
	}
	if differ(out[:len(out)-1], out) == "" || differ(append(bytes.Clone(out), 'x'), out) == "" {
		t.Error("a lost or doubled byte is not seen")
	}
}

func TestTTYMayRepeatButNotLose(t *testing.T) {
	want := expectedTTY(3, 400)
	at := len(want) / 2
	again := append(append(bytes.Clone(want[:at]), want[at-300:at]...), want[at:]...)
	if n, d := differTTY(again, want); d != "" || n != 1 {
		t.Errorf("repeat: %d %s", n, d)
	}
	lost := append(bytes.Clone(want[:at]), want[at+10:]...)
	if _, d := differTTY(lost, want); d == "" {
		t.Error("lost bytes are not seen")
	}
	if _, d := differTTY(want[:at], want); d == "" {
		t.Error("a lost tail is not seen")
	}
}
