package native

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// refuse names the first field that this runtime cannot honour. A field is
// either done or refused, never passed over in silence.
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
		{hooks(s.Hooks), "hooks"},
		{l.IntelRdt != nil, "linux.intelRdt"},
		{l.MountLabel != "", "linux.mountLabel"},
		{l.MemoryPolicy != nil, "linux.memoryPolicy"},
		{len(l.NetDevices) > 0, "linux.netDevices"},
		{p.ExecCPUAffinity != nil, "process.execCPUAffinity"},
		{l.Seccomp != nil && l.Seccomp.ListenerPath != "", "linux.seccomp.listenerPath"},
	} {
		if f.set {
			return notDone(f.name)
		}
	}
	return nil
}

// notDone is the error of a field that this runtime does not do and another one
// may.
func notDone(field string) error {
	return fmt.Errorf("%s: not done by the native runtime: %w", field, errdefs.ErrNotImplemented)
}

func hooks(h *specs.Hooks) bool {
	return h != nil && (len(h.CreateRuntime) > 0 || len(h.CreateContainer) > 0 || len(h.StartContainer) > 0 ||
		len(h.Poststart) > 0 || len(h.Poststop) > 0 || len(h.Prestart) > 0) //nolint:staticcheck // deprecated, and still sent
}
