// Package sysctl reads the names of kernel parameters, and sets those that
// belong to a namespace.
//
// Every caller that sets a parameter for a container parses its name here, so
// that there is one answer to which file a name means. Start at Parse.
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

// Root is where the kernel shows its parameters.
const Root = "/proc/sys"

// Bounds of a name: a part is the name of a file, and the whole is a path far
// shorter than the kernel's own bound.
const (
	maxPart = 255
	maxName = 1024
)

// Key is a parameter of a namespace.
type Key struct {
	Kind specs.LinuxNamespaceType // the kind of namespace that it belongs to
	Dir  string                   // the directory below Root that holds nothing but parameters of this kind, or "kernel"
	File string                   // its path below Dir
}

// String is the name with slashes between its parts, as below Root.
func (k Key) String() string { return strings.TrimPrefix(k.Dir+"/"+k.File, "./") }

// Dotted is the name with dots between its parts; a dot inside a part, as
// interfaces have it, is a slash.
func (k Key) Dotted() string { return swap(k.String()) }

// How says how a parameter's file is opened below its directory: the kernel
// refuses any name that leads out of it, whatever Parse has let through.
func How() unix.OpenHow {
	return unix.OpenHow{
		Flags:   unix.O_WRONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	}
}

// Setting is a parameter and its value.
type Setting struct {
	Key
	Name  string // as it was written
	Value string
}

// Parse reads a name. As in sysctl(8), the first separator met decides which
// one separates: net.ipv4.conf.eth0/1.forwarding and
// net/ipv4/conf/eth0.1/forwarding are the same. A parameter that the whole
// machine shares is InvalidArgument, and so is what names no file.
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

// ofKernel is the kind of namespace that a parameter directly below kernel
// belongs to, "" for one of the machine's.
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

// split is the name's parts, each of which may be the name of a file.
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

// ParseAll parses all names, in their order. Two names of one parameter are
// InvalidArgument: which value would hold is not said.
func ParseAll(values map[string]string) ([]Setting, error) {
	list := make([]Setting, 0, len(values))
	seen := make(map[Key]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		k, err := Parse(name)
		if err != nil {
			return nil, err
		}
		if other, ok := seen[k]; ok {
			return nil, fmt.Errorf("sysctl %q is given as %q too: %w", name, other, errdefs.ErrInvalidArgument)
		}
		seen[k] = name
		list = append(list, Setting{Key: k, Name: name, Value: values[name]})
	}
	return list, nil
}

// Set writes the value, as the calling thread's namespaces see the parameter.
// A parameter that this kernel lacks, and a value that it does not take, are
// InvalidArgument.
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
		return fmt.Errorf("set sysctl %s: this kernel has none: %w: %w", s.Name, err, errdefs.ErrInvalidArgument)
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

// parseWeakly is how the native runtime used to read names: net.//.kernel.x is
// net/../kernel/x, which lies below Root and outside of net. It is compiled in
// for the attack suite alone.
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
