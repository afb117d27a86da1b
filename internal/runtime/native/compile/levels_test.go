package compile

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// TestFilesInMemoryCannotBeExecuted: with every kind of filter, memfd_create works only with MFD_NOEXEC_SEAL, and other
// calls as before.
func TestFilesInMemoryCannotBeExecuted(t *testing.T) {
	standard := &specs.Spec{}
	if err := ocispec.DefaultSeccomp(standard); err != nil {
		t.Fatal(err)
	}
	archs := standard.Linux.Seccomp.Architectures
	errno := uint(1)
	for name, own := range map[string]*specs.LinuxSeccomp{
		"none": nil, "the default": standard.Linux.Seccomp,
		"one that allows": {DefaultAction: specs.ActAllow, Architectures: archs, Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActErrno, ErrnoRet: &errno}}},
		"one that allows it alone": {
			DefaultAction: specs.ActErrno, DefaultErrnoRet: &errno, Architectures: archs,
			Syscalls: []specs.LinuxSyscall{{Names: []string{"memfd_create"}, Action: specs.ActAllow}, {Names: []string{"getpid"}, Action: specs.ActAllow}},
		},
	} {
		s := &specs.Spec{Linux: &specs.Linux{Seccomp: own}}
		ocispec.SetLevels(s, "no-exec-from-writable")
		if err := ocispec.ApplyLevels(s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f, err := seccomp.Compile(s.Linux.Seccomp)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for flags, want := range map[uint64]bool{
			0: false, unix.MFD_CLOEXEC: false, unix.MFD_EXEC: false, unix.MFD_NOEXEC_SEAL: true, unix.MFD_NOEXEC_SEAL | unix.MFD_CLOEXEC: true,
		} {
			if f.Allows(unix.SYS_MEMFD_CREATE, [6]uint64{1, flags}) != want {
				t.Errorf("%s: memfd_create with flags %#x: allowed: %v", name, flags, !want)
			}
		}
		if !f.Allows(unix.SYS_GETPID, [6]uint64{}) {
			t.Errorf("%s: getpid is not allowed", name)
		}
	}
	closed := &specs.Spec{Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &errno, Architectures: archs}}}
	ocispec.SetLevels(closed, "no-exec-from-writable")
	if err := ocispec.ApplyLevels(closed); err != nil || len(closed.Linux.Seccomp.Syscalls) != 0 {
		t.Errorf("a filter that forbids the call allows it now: %+v, %v", closed.Linux.Seccomp, err)
	}
}

// TestLevelsNeedTheKernel: a kernel that cannot enforce a level has the container refused.
func TestLevelsNeedTheKernel(t *testing.T) {
	for levels, needs := range map[string]int{"read-only-system": 3, "no-exec-from-writable": 3, "no-network-bind": 4, "no-network-connect": 4} {
		for version := range 8 {
			s := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}}}}
			ocispec.SetLevels(s, levels)
			d := draft{in: Input{Spec: s, Host: Host{Landlock: version}}}
			_, err := d.levels()
			if version >= needs && err != nil || version < needs && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), levels)) {
				t.Errorf("%s with version %d of Landlock: %v", levels, version, err)
			}
		}
	}
	s := &specs.Spec{Linux: &specs.Linux{}}
	ocispec.SetLevels(s, "read-only-system")
	d := draft{in: Input{Spec: s, Borrow: true, Host: Host{Landlock: 8}}}
	if _, err := d.levels(); !errdefs.IsNotImplemented(err) {
		t.Errorf("without a mount namespace: %v", err)
	}
}
