package native

import (
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestALimitBelowOnePageIsNamedAsTheUserGaveIt: the kernel answers 0 bytes for it.
func TestALimitBelowOnePageIsNamedAsTheUserGaveIt(t *testing.T) {
	of := func(n int64) func() (*specs.Spec, error) {
		return func() (*specs.Spec, error) {
			return &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}}}, nil
		}
	}
	for _, c := range []struct {
		have int64
		spec func() (*specs.Spec, error)
		want string
	}{
		{0, of(1), "its memory limit of 1 byte"},
		{0, of(100), "its memory limit of 100 bytes"},
		{4096, of(1), "its memory limit of 4096 bytes"}, // it was updated
		{0, func() (*specs.Spec, error) { return &specs.Spec{}, nil }, "its memory limit, which is less than a page,"},
		{0, func() (*specs.Spec, error) { return nil, errors.New("no spec") }, "its memory limit, which is less than a page,"},
	} {
		if got := limitText(c.have, c.spec); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
