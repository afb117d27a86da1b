package session

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func TestDetachKeysAreFoundAcrossReads(t *testing.T) {
	d := detacher{on: true, keys: usualDetachKeys}
	for _, step := range []struct {
		in, out string
		left    bool
	}{{"ab", "ab", false}, {"c\x10", "c", false}, {"x", "\x10x", false}, {"\x10\x10", "\x10", false}, {"\x11rest", "", true}} {
		out, left := d.filter([]byte(step.in))
		if string(out) != step.out || left != step.left {
			t.Errorf("%q: %q, %v, want %q, %v", step.in, out, left, step.out, step.left)
		}
	}
	off := detacher{keys: usualDetachKeys}
	if out, left := off.filter([]byte(usualDetachKeys)); string(out) != usualDetachKeys || left {
		t.Error("without a terminal the keys are input")
	}
}

// TestDetachKeysOfOnesOwn parses keys, and finds keys that begin again within themselves.
func TestDetachKeysOfOnesOwn(t *testing.T) {
	for text, want := range map[string]string{"": usualDetachKeys, "ctrl-a,d": "\x01d", "ctrl-@": "\x00", "ctrl-[,ctrl-_,x,Q": "\x1b\x1fxQ", "a,a,b": "aab"} {
		var keys DetachKeys
		if err := keys.Set(text); err != nil || keys.bytes() != want {
			t.Errorf("%q: %q, %v, want %q", text, keys.bytes(), err, want)
		}
	}
	for _, text := range []string{",", "ctrl-", "ctrl-A", "ctrl-1", "aa", "a,", " ", "é"} {
		if err := new(DetachKeys).Set(text); !errors.Is(err, errDetachKeys) {
			t.Errorf("%q: %v", text, err)
		}
	}
	d := detacher{on: true, keys: "aab"}
	if out, left := d.filter([]byte("a\xffaaaabz")); string(out) != "a\xffaa" || !left {
		t.Errorf("%q, %v", out, left)
	}
}

// TestThreeInterruptsEndTheSession checks that the program gets the first two, as it gets other signals.
func TestThreeInterruptsEndTheSession(t *testing.T) {
	var sent []string
	s := &Session{App: base.NewApp(base.Options{}), Send: func(in *longshorev1.Input) error {
		sent = append(sent, in.GetSignal())
		return nil
	}}
	signals := make(chan os.Signal, 8)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		signals <- sig
	}
	var why error
	s.passSignals(t.Context(), signals, func(err error) { why = err }) // returns by itself
	if !errors.Is(why, errInterrupted) || strings.Join(sent, " ") != "SIGINT SIGUSR1 SIGTERM" {
		t.Errorf("sent %q, ended by %v", sent, why)
	}
	if exit := new(base.ExitError); !errors.As(s.End(0, why), &exit) || exit.Status != 130 {
		t.Errorf("the exit status is %d", exit.Status)
	}
}
