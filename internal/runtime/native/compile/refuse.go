package compile

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// refuse returns an error for the first field that this runtime does not support. A
// field is either supported or refused, never ignored.
func refuse(s *specs.Spec) error {
	if s.Process == nil || s.Root == nil || s.Linux == nil {
		return fmt.Errorf("spec: process, root and linux must be set: %w", errdefs.ErrInvalidArgument)
	}
	l, p := s.Linux, s.Process
	if len(p.Args) == 0 {
		return fmt.Errorf("process.args: empty: %w", errdefs.ErrInvalidArgument)
	}
	for _, f := range []struct {
		set  bool
		name string
	}{
		{s.VM != nil, "vm"},
		{s.Windows != nil, "windows"},
		{s.Solaris != nil, "solaris"},
		{l.IntelRdt != nil, "linux.intelRdt"},
		{len(l.NetDevices) > 0, "linux.netDevices"},
	} {
		if f.set {
			return notDone(f.name)
		}
	}
	return checkHooks(s.Hooks)
}

// notDone returns the error for a field that this runtime does not support and another
// one may.
func notDone(field string) error {
	return fmt.Errorf("%s: not supported by the native runtime: %w", field, errdefs.ErrNotImplemented)
}
