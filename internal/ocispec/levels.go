package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Levels are the levels of Landlock of an ordinary container. Each only takes rights away, so everybody may ask for them.
type Levels struct {
	// ReadOnlySystem lets the program change files only in its writable mounts, in DataDirs and in /dev.
	ReadOnlySystem bool
	// NoExec lets the program execute no file from a place that it may change. It includes ReadOnlySystem.
	NoExec bool
	// NoBind and NoConnect deny TCP sockets bind and connect.
	NoBind, NoConnect bool
}

// The names of the levels.
const (
	levelReadOnlySystem = "read-only-system"
	levelNoExec         = "no-exec-from-writable"
	levelNoBind         = "no-network-bind"
	levelNoConnect      = "no-network-connect"
)

// maxLevels bounds the length of the text that names levels.
const maxLevels = 256

// DataDirs returns the directories of the root that hold a program's data and not the system's. A program with
// ReadOnlySystem may change files in them.
func DataDirs() []string { return []string{"home", "media", "mnt", "root", "run", "srv", "tmp", "var"} }

// ParseLevels parses the names of levels, separated by commas. InvalidArgument for an unknown one.
func ParseLevels(text string) (l Levels, err error) {
	if len(text) > maxLevels {
		return l, fmt.Errorf("levels of Landlock: %d bytes, at most %d: %w", len(text), maxLevels, errdefs.ErrInvalidArgument)
	}
	for name := range strings.SplitSeq(text, ",") {
		switch strings.TrimSpace(name) {
		case levelReadOnlySystem:
			l.ReadOnlySystem = true
		case levelNoExec:
			l.ReadOnlySystem, l.NoExec = true, true
		case levelNoBind:
			l.NoBind = true
		case levelNoConnect:
			l.NoConnect = true
		default:
			return Levels{}, fmt.Errorf("level of Landlock %q: unknown: use one or more of %s, separated by commas: %w", name,
				strings.Join([]string{levelReadOnlySystem, levelNoExec, levelNoBind, levelNoConnect}, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return l, nil
}

// Names returns the names of the levels.
func (l Levels) Names() (names []string) {
	for _, n := range []struct {
		on   bool
		name string
	}{{l.ReadOnlySystem, levelReadOnlySystem}, {l.NoExec, levelNoExec}, {l.NoBind, levelNoBind}, {l.NoConnect, levelNoConnect}} {
		if n.on {
			names = append(names, n.name)
		}
	}
	return names
}

// LevelsOf returns the levels of a spec.
func LevelsOf(s *specs.Spec) (Levels, error) {
	text, ok := s.Annotations[core.LandlockAnnotation]
	if !ok {
		return Levels{}, nil
	}
	l, err := ParseLevels(text)
	if err != nil {
		return l, fmt.Errorf("annotation %s: %w", core.LandlockAnnotation, err)
	}
	return l, nil
}

// SetLevels adds the text that names a container's levels to its spec; "" is none.
func SetLevels(s *specs.Spec, text string) {
	if text == "" {
		return
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[core.LandlockAnnotation] = text
}

// ApplyLevels completes a spec for its levels, when nothing else changes it any more: with NoExec, files cannot be
// executed in writable mounts, nor in memory. Landlock denies mounts to the program, so it cannot undo that.
func ApplyLevels(s *specs.Spec) error {
	l, err := LevelsOf(s)
	if err != nil || !l.NoExec {
		return err
	}
	s.Mounts = slices.Clone(s.Mounts)
	for i, m := range s.Mounts {
		if ReadOnlyMount(m) {
			continue
		}
		option := "noexec"
		if o := ParseMountOptions(m.Options); m.Type == "bind" || o.Flags&unix.MS_BIND != 0 {
			option = "rnoexec"
		}
		s.Mounts[i].Options = append(slices.Clone(m.Options), option)
	}
	return noExecutableMemory(s)
}

// ReadOnlyMount reports whether the options of a mount make it read-only.
func ReadOnlyMount(m specs.Mount) bool {
	o := ParseMountOptions(m.Options)
	return o.Flags&unix.MS_RDONLY != 0 || o.RecursiveSet&unix.MOUNT_ATTR_RDONLY != 0
}

// noExecutableMemory lets a spec's filter allow memfd_create only with MFD_NOEXEC_SEAL: other files in memory can be
// executed. Kernels before Linux 6.3 do not know the flag, and refuse the call with it.
func noExecutableMemory(s *specs.Spec) error {
	const call = "memfd_create"
	sealed := []specs.LinuxSeccompArg{{Index: 1, Value: unix.MFD_NOEXEC_SEAL, ValueTwo: unix.MFD_NOEXEC_SEAL, Op: specs.OpMaskedEqual}}
	unsealed := []specs.LinuxSeccompArg{{Index: 1, Value: unix.MFD_NOEXEC_SEAL, ValueTwo: 0, Op: specs.OpMaskedEqual}}
	errno := uint(unix.EACCES)
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	var filter specs.LinuxSeccomp
	if s.Linux.Seccomp != nil {
		filter = *s.Linux.Seccomp
	} else { // of the kernel's architectures, as the default filter has them
		var standard specs.Spec
		if err := DefaultSeccomp(&standard); err != nil {
			return err
		}
		filter = specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: standard.Linux.Seccomp.Architectures}
	}
	calls, allowed := make([]specs.LinuxSyscall, 0, len(filter.Syscalls)+1), false
	for _, c := range filter.Syscalls {
		if (c.Action == specs.ActAllow || c.Action == specs.ActLog) && slices.Contains(c.Names, call) {
			c.Names = slices.DeleteFunc(slices.Clone(c.Names), func(n string) bool { return n == call })
			allowed = true
		}
		if len(c.Names) > 0 {
			calls = append(calls, c)
		}
	}
	switch {
	case filter.DefaultAction == specs.ActAllow || filter.DefaultAction == specs.ActLog:
		calls = append(calls, specs.LinuxSyscall{Names: []string{call}, Action: specs.ActErrno, ErrnoRet: &errno, Args: unsealed})
	case allowed:
		calls = append(calls, specs.LinuxSyscall{Names: []string{call}, Action: specs.ActAllow, Args: sealed})
	}
	filter.Syscalls = calls
	s.Linux.Seccomp = &filter
	return nil
}
