package ocicli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// The files in a container's directory.
const (
	recordFile = "state.json"
	configFile = "config.json" // a copy from the time of the creation
	startFifo  = "start"       // the parked process reads a byte from it
	errorFifo  = "error"       // the process reports a failure by it; execve closes it
	lockFile   = "lock"        // locked by a command that changes the container
	newPrefix  = ".new-"       // prefix of the directory of an unfinished container
)

// record is the record of a container, in state.json. It is written before anything is made, so
// that the container can be cleaned up if the command dies.
type record struct {
	ID     string `json:"id"`
	Bundle string `json:"bundle"`
	Rootfs string `json:"rootfs"`
	Cgroup string `json:"cgroup"`
	// Systemd means that the cgroup belongs to a systemd unit.
	Systemd bool      `json:"systemd,omitempty"`
	Created time.Time `json:"created"`
	// Pid is the main process, 0 until it has parked. Ticks is when it started, field 22
	// of /proc/PID/stat, which distinguishes it from a later process with the same pid.
	Pid         int               `json:"pid"`
	Ticks       uint64            `json:"ticks"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Steps are the names of the plan's operations from number First on, for the error
	// of an operation that fails after the release.
	First int      `json:"first,omitempty"`
	Steps []string `json:"steps,omitempty"`
	// Mounts is how many mounts Rootfs had before a container without a mount namespace,
	// which leaves its own there; -1 for other containers.
	Mounts int `json:"mounts"`
	// KeepKeyring applies to execs too.
	KeepKeyring bool `json:"keepKeyring,omitempty"`
}

// container is a record with its directory.
type container struct {
	record
	dir  string
	lock *os.File // nil unless locked
}

// validID refuses IDs that are not plain file names. Programs use hex, people names.
func validID(id string) error {
	bad := id == "" || len(id) > 1024 || id[0] == '.'
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("_+-.", c) >= 0:
		default:
			bad = true
		}
	}
	if bad {
		return fmt.Errorf("container ID %q: want letters, digits and _+-. : %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}

// decodeRecord decodes a state.json, and refuses one with dangerous values.
func decodeRecord(id string, b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w", recordFile, err)
	}
	switch {
	case r.ID != id:
		return record{}, fmt.Errorf("%s: it belongs to container %q: %w", recordFile, r.ID, errdefs.ErrDataLoss)
	case r.Mounts >= 0 && !filepath.IsAbs(r.Rootfs):
		return record{}, fmt.Errorf("%s: root %q: %w", recordFile, r.Rootfs, errdefs.ErrDataLoss)
	case r.Pid < 0 || r.First < 0:
		return record{}, fmt.Errorf("%s: pid %d: %w", recordFile, r.Pid, errdefs.ErrDataLoss)
	case r.Cgroup == "/" || !filepath.IsAbs(r.Cgroup) || filepath.Clean(r.Cgroup) != r.Cgroup:
		return record{}, fmt.Errorf("%s: cgroup %q: %w", recordFile, r.Cgroup, errdefs.ErrDataLoss)
	}
	return r, nil
}

// decodeSpec decodes a config.json and checks the parts that every command needs.
func decodeSpec(b []byte) (*specs.Spec, error) {
	var s specs.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", configFile, err, errdefs.ErrInvalidArgument)
	}
	if s.Version == "" {
		return nil, fmt.Errorf("%s: ociVersion: missing: %w", configFile, errdefs.ErrInvalidArgument)
	}
	// Version 1 of the runtime spec: later 1.x versions only add fields.
	if major, _, ok := strings.Cut(s.Version, "."); !ok || major != "1" {
		return nil, fmt.Errorf("%s: ociVersion %q: want 1.x: %w", configFile, s.Version, errdefs.ErrInvalidArgument)
	}
	if s.Root == nil || s.Root.Path == "" || s.Linux == nil {
		return nil, fmt.Errorf("%s: root.path and linux must be set: %w", configFile, errdefs.ErrInvalidArgument)
	}
	return &s, nil
}

func (r record) ref() core.CgroupRef { return core.CgroupRef{Path: r.Cgroup} }

func (c *container) path(file string) string { return filepath.Join(c.dir, file) }

func (c *container) save() error {
	b, err := json.Marshal(c.record)
	if err != nil {
		return err
	}
	return atomicfile.Replace(c.path(recordFile), b, 0o600)
}

func (c *container) spec() (*specs.Spec, error) {
	b, err := os.ReadFile(c.path(configFile))
	if err != nil {
		return nil, err
	}
	return decodeSpec(b)
}

// load reads a container's record. It fails with NotFound if there is none.
func (a *app) load(id string) (*container, error) {
	c := &container{dir: filepath.Join(a.root, id)}
	b, err := os.ReadFile(c.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("container %q does not exist: %w", id, errdefs.ErrNotFound)
	}
	if err == nil {
		c.record, err = decodeRecord(id, b)
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", id, err)
	}
	a.systemd = a.systemd || c.Systemd // as at its creation, independent of the present flag
	return c, nil
}

// claim makes a container's directory, with all that later commands expect in it, and
// returns the container locked. It fails with AlreadyExists if the ID is in use.
func (a *app) claim(r record, config []byte) (_ *container, err error) {
	if err := os.MkdirAll(a.root, 0o711); err != nil {
		return nil, err
	}
	// One claim at a time, so that an unfinished directory found here belongs to a dead
	// command.
	root, err := lockDir(a.root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if unfinished, _ := filepath.Glob(filepath.Join(a.root, newPrefix+"*")); len(unfinished) > 0 {
		for _, dir := range unfinished {
			_ = os.RemoveAll(dir)
		}
	}
	final := filepath.Join(a.root, r.ID)
	if a.taken(r.ID) {
		return nil, errTaken(r.ID)
	}
	c := &container{record: r, dir: filepath.Join(a.root, newPrefix+r.ID)}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(c.dir)
			c.unlock()
		}
	}()
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	for _, fifo := range []string{startFifo, errorFifo} {
		if err := unix.Mkfifo(c.path(fifo), 0o600); err != nil {
			return nil, &os.PathError{Op: "mkfifo", Path: c.path(fifo), Err: err}
		}
	}
	if err := os.WriteFile(c.path(configFile), config, 0o600); err != nil {
		return nil, err
	}
	if err := c.save(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.path(lockFile), nil, 0o600); err != nil {
		return nil, err
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	if err := os.Rename(c.dir, final); err != nil {
		return nil, err
	}
	c.dir = final
	return c, nil
}

func (a *app) taken(id string) bool {
	_, err := os.Lstat(filepath.Join(a.root, id))
	return err == nil
}

// errTaken returns an error with the text that callers search for.
func errTaken(id string) error {
	return fmt.Errorf("container with given ID already exists: %s: %w", id, errdefs.ErrAlreadyExists)
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}

// hold waits until no other command changes the container, and locks it until this
// command ends. It fails with NotFound if the container was deleted meanwhile.
func (c *container) hold() error {
	f, err := os.Open(c.path(lockFile))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("container %q does not exist: %w", c.ID, errdefs.ErrNotFound)
		}
		return err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return err
	}
	c.lock = f
	return nil
}

func (c *container) unlock() {
	if c.lock != nil {
		_ = c.lock.Close()
		c.lock = nil
	}
}

// busy reports whether a command is changing the container now.
func (c *container) busy() bool {
	f, err := os.Open(c.path(lockFile))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return flock(f, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// open locks a container and reads its record. It reads it under the lock, because
// another command may have changed it before.
func (a *app) open(id string) (*container, error) {
	c, err := a.load(id)
	if err != nil {
		return nil, err
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	lock := c.lock
	again, err := a.load(id)
	if err != nil {
		c.unlock()
		return nil, err
	}
	again.lock = lock
	return again, nil
}
