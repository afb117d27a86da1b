package validate

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestParseSignal(t *testing.T) {
	for name, want := range map[string]int{
		"": 15, "SIGTERM": 15, "term": 15, "9": 9, "SIGUSR1": 10, "64": 64, "SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMAX-1": 63,
	} {
		if got, err := StopSignal(name); err != nil || got != want {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
	for _, name := range []string{"0", "-1", "65", "SIGNONE", "SIGRTMIN+99", "SIGRTMIN-1", "SIGRTMAXx", " "} {
		if got, err := StopSignal(name); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
}
