// Package sysctl parses the names of kernel parameters, and sets those that belong to a
// namespace.
//
// Everything that sets a parameter for a container parses its name here, so that a name means the
// same file everywhere. Start at Parse.
package sysctl

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// Root is the directory of the kernel's parameters.
const Root = "/proc/sys"

// Limits of a name: each part is the name of a file, and the whole is a path far shorter than the
// kernel's own limit.
const (
	maxPart = 255
	maxName = 1024
)

// Key is a parameter of a namespace.
type Key struct {
	Kind specs.LinuxNamespaceType // the kind of namespace that it belongs to
	Dir  string                   // the directory below Root that contains only parameters of this kind, or "kernel"
	File string                   // its path below Dir
}

// String returns the name with slashes between its parts, as below Root.
func (k Key) String() string { return strings.TrimPrefix(k.Dir+"/"+k.File, "./") }

// Dotted returns the name with dots between its parts. A dot inside a part, which names of
// interfaces may have, becomes a slash.
func (k Key) Dotted() string { return swap(k.String()) }

// How returns the options with which to open a parameter's file below its directory: the kernel
// refuses any name that leads out of it, even if Parse should let one through.
func How() unix.OpenHow {
	return unix.OpenHow{
		Flags:   unix.O_WRONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	}
}

// Setting is a parameter and its value.
type Setting struct {
	Key
	Name  string // as the caller wrote it
	Value string
}

// Parse parses a name. As in sysctl(8), the first separator in the name decides which character
// separates: net.ipv4.conf.eth0/1.forwarding and net/ipv4/conf/eth0.1/forwarding are the same. A
// parameter that the whole machine shares is InvalidArgument, and so is a name of no file.
func Parse(name string) (Key, error) {
	if weaken.Off(weaken.SysctlNames) {
		return parseWeakly(name)
	}
	parts, err := split(name)
	if err != nil {
		return Key{}, err
	}
	switch {
	case len(parts) > 1 && parts[0] == "net":
		return Key{specs.NetworkNamespace, "net", strings.Join(parts[1:], "/")}, nil
	case len(parts) > 2 && parts[0] == "fs" && parts[1] == "mqueue":
		return Key{specs.IPCNamespace, "fs/mqueue", strings.Join(parts[2:], "/")}, nil
	case len(parts) == 2 && parts[0] == "kernel":
		if kind := ofKernel(parts[1]); kind != "" {
			return Key{kind, "kernel", parts[1]}, nil
		}
	}
	return Key{}, fmt.Errorf("sysctl %q is shared by the whole machine: %w", name, errdefs.ErrInvalidArgument)
}

// ofKernel returns the kind of namespace of a parameter directly below kernel; "" for a parameter
// of the machine.
func ofKernel(name string) specs.LinuxNamespaceType {
	switch name {
	case "hostname", "domainname":
		return specs.UTSNamespace
	case "msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced",
		"auto_msgmni", "msg_next_id", "sem_next_id", "shm_next_id":
		return specs.IPCNamespace
	}
	return ""
}

// split returns the name's parts, each of which may be the name of a file.
func split(name string) ([]string, error) {
	path := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		path = swap(name)
	}
	parts := strings.Split(path, "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || len(part) > maxPart || strings.ContainsRune(part, 0) {
			return nil, notAName(name)
		}
	}
	if len(name) > maxName {
		return nil, notAName(name)
	}
	return parts, nil
}

func notAName(name string) error {
	if len(name) > maxPart {
		name = name[:maxPart] + "..."
	}
	return fmt.Errorf("%q is not the name of a sysctl: %w", name, errdefs.ErrInvalidArgument)
}

// swap exchanges dots and slashes.
func swap(name string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		default:
			return r
		}
	}, name)
}

// AnyUser returns the parameters by which every user may ping and listen at low ports. In a network
// namespace of its own that is harmless, and dockerd's containers have it so.
func AnyUser() map[string]string {
	return map[string]string{"net.ipv4.ping_group_range": "0 2147483647", "net.ipv4.ip_unprivileged_port_start": "0"}
}

// ParseAll parses all names, in order. Two names of the same parameter are InvalidArgument,
// because it is undefined which value counts.
func ParseAll(values map[string]string) ([]Setting, error) {
	list := make([]Setting, 0, len(values))
	seen := make(map[Key]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		k, err := Parse(name)
		if err != nil {
			return nil, err
		}
		if other, ok := seen[k]; ok {
			return nil, fmt.Errorf("sysctl %q is also given as %q: %w", name, other, errdefs.ErrInvalidArgument)
		}
		seen[k] = name
		list = append(list, Setting{Key: k, Name: name, Value: values[name]})
	}
	return list, nil
}

// Set writes the value to the parameter in the calling thread's namespaces. A parameter that this
// kernel lacks, and a value that it refuses, are InvalidArgument.
func (s Setting) Set() error {
	f, err := s.open()
	if err == nil {
		_, err = f.WriteString(s.Value)
		err = errors.Join(err, f.Close())
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("set sysctl %s: this kernel does not have it: %w: %w", s.Name, err, errdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("set sysctl %s to %q: %w: %w", s.Name, s.Value, err, errdefs.ErrInvalidArgument)
	}
}

func (s Setting) open() (*os.File, error) {
	dir, err := unix.Open(Root+"/"+s.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: Root + "/" + s.Dir, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	how := How()
	fd, err := unix.Openat2(dir, s.File, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: Root + "/" + s.String(), Err: err}
	}
	return os.NewFile(uintptr(fd), Root+"/"+s.String()), nil
}

// parseWeakly parses names as the native runtime once did: net.//.kernel.x becomes
// net/../kernel/x, which is below Root and outside of net. It is compiled in only for the attack
// suite.
func parseWeakly(name string) (Key, error) {
	key := Key{Dir: ".", File: swap(name)}
	switch first, _, _ := strings.Cut(name, "."); {
	case strings.Contains(name, ".."):
	case first == "net":
		key.Kind = specs.NetworkNamespace
	case strings.HasPrefix(name, "fs.mqueue."):
		key.Kind = specs.IPCNamespace
	default:
		key.Kind = ofKernel(strings.TrimPrefix(name, "kernel."))
	}
	if key.Kind == "" {
		return Key{}, fmt.Errorf("sysctl %q is shared by the whole machine: %w", name, errdefs.ErrInvalidArgument)
	}
	return key, nil
}
