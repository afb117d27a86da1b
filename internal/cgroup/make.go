package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// make creates ref's own directories and returns those that did not exist. Adopted ones
// must exist.
func (t *Tree) make(ctx context.Context, ref core.CgroupRef) (made []string, err error) {
	for c, dir := range ref.Adopted {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("adopted cgroup %s of controller %q is not there: %w", dir, c, errdefs.ErrNotFound)
		}
	}
	if t.systemd != nil {
		if done, err := t.makeUnit(ctx, ref); done || err != nil {
			return nil, err
		}
	}
	for _, h := range t.layout.v1 {
		dir, adopted := h.dir(ref)
		if dir == "" || adopted {
			continue
		}
		is, err := h.make(dir)
		if is {
			made = append(made, dir)
		}
		if err != nil {
			return made, err
		}
	}
	if t.layout.mode == core.CgroupV2 && ref.Adopted[""] == "" && ref.Path != "" {
		dir, err := t.makeV2(ref.Path)
		if dir != "" {
			made = append(made, dir)
		}
		return made, err
	}
	return made, nil
}

// make creates a directory of this hierarchy and its missing parents, and reports
// whether it did not exist.
func (h hierarchy) make(dir string) (made bool, err error) {
	if h.has("cpuset") {
		return makeCpuset(h.mount, dir)
	}
	err = os.Mkdir(dir, 0o755)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrExist):
		return false, nil
	case errors.Is(err, os.ErrNotExist):
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return false, makeError(err)
	}
	return true, nil
}

func makeError(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	}
	return err
}

// makeCpuset makes dir with the CPUs and memory nodes of its parent. With cgroup.clone_children the
// kernel copies them to the directories below dir, because writing a cpuset's CPUs makes the kernel
// walk all cpusets of the machine.
func makeCpuset(mount, dir string) (made bool, err error) {
	err = os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) && len(dir) > len(mount) {
		if _, err := makeCpuset(mount, filepath.Dir(dir)); err != nil {
			return false, err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return false, makeError(err)
	}
	if made = err == nil; made {
		// A new cpuset that has CPUs already got its parent's from the kernel, and
		// so will its own children.
		if cpus, err := readShort(filepath.Join(dir, "cpuset.cpus")); err == nil && cpus != "" {
			return true, nil
		}
	}
	if err := inheritCpuset(mount, dir); err != nil || !made { // an existing one is not changed otherwise
		return made, err
	}
	return true, clone(dir)
}

// clone makes the new children of a cgroup start with its cpuset.
func clone(dir string) error {
	const file = "cgroup.clone_children"
	if on, err := readShort(filepath.Join(dir, file)); err != nil || on == "1" {
		return err
	}
	return writeFile(filepath.Join(dir, file), "1")
}

// inheritCpuset gives every level from mount down to dir the CPUs and memory nodes of
// its parent: a v1 cpuset starts empty, and no process can join an empty one.
func inheritCpuset(mount, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if _, err := inherit(mount, dir, file); err != nil {
			return fmt.Errorf("inherit %s: %w", file, err)
		}
	}
	return nil
}

func inherit(mount, dir, file string) (string, error) {
	value, err := readShort(filepath.Join(dir, file))
	if err != nil {
		return "", err
	}
	if value != "" || dir == mount || len(dir) <= len(mount) {
		return value, nil
	}
	if value, err = inherit(mount, filepath.Dir(dir), file); err != nil {
		return "", err
	}
	return value, writeFile(filepath.Join(dir, file), value)
}

// makeV2 makes a directory of the v2 tree and enables every controller down to it. It
// returns the directories that did not exist.
func (t *Tree) makeV2(path string) (made string, err error) {
	dir := t.layout.unified
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err := delegate(dir); err != nil {
			return "", err
		}
		dir = filepath.Join(dir, part)
		if err = os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", makeError(err)
		}
	}
	if err != nil {
		return "", nil
	}
	return dir, nil
}

// delegate enables in dir's children every controller that dir has. One that cannot be
// enabled (because dir has processes, or real-time ones) is left out: a limit that needs
// it fails with its own error.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	active := map[string]bool{}
	for _, c := range strings.Fields(string(on)) {
		active[c] = true
	}
	var missing []string
	for _, c := range strings.Fields(string(have)) {
		if !active[c] {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	if writeFile(file, strings.Join(missing, " ")) == nil {
		return nil
	}
	for _, c := range missing { // enabling all at once failed, so enable each one that works
		_ = writeFile(file, c)
	}
	return nil
}

// readShort reads a kernel file of at most one page, without surrounding blanks. Like
// writeFile it makes the system calls directly.
func readShort(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [4096]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err == nil {
			return strings.TrimSpace(string(buf[:n])), nil
		}
		if err != unix.EINTR {
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		}
	}
}

// writeFile writes a value to an existing kernel file in one write. It makes the system
// calls directly: such files can be polled, so package os would register each with the
// runtime's poller, and a container has dozens.
func writeFile(path, value string) error {
	fd, err := openToWrite(path)
	if err != nil {
		return err
	}
	err = write(fd, value)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func openToWrite(path string) (fd int, err error) {
	if fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func write(fd int, value string) error {
	for {
		if _, err := unix.Write(fd, []byte(value)); err != unix.EINTR {
			return err
		}
	}
}
