// Package store is the process that writes what a Mesos command fetches into its
// sandbox, and unpacks archives there.
//
// Archives are made by strangers. So the process is the container's user before it
// opens anything, and then loses all but the sandbox: files, system calls,
// capabilities. It must not know where bytes come from. Start at Main.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/weaken"
)

// Arg is the first argument with which the agent's program is executed again as
// this process. The second is a Job.
const Arg = "mesos-store"

// Descriptors that the process is started with.
const (
	SourceFD  = 3 // the bytes, or the directory that Job.File is below
	SandboxFD = 4 // the sandbox
)

// Job is what is to be done.
type Job struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// File is a path below SourceFD, "" when SourceFD has the bytes themselves.
	File string `json:"file,omitempty"`
	// Name is the file's path in the sandbox.
	Name string `json:"name"`
	// Executable files are not unpacked.
	Executable bool `json:"executable,omitempty"`
	Extract    bool `json:"extract,omitempty"`
	// Limit bounds what is written, in bytes.
	Limit int64 `json:"limit"`
}

// Result is how it went.
type Result struct {
	Written int64  `json:"written"` // bytes
	Error   string `json:"error,omitempty"`
}

// Bounds of the process: of its memory, which an archive may want as it likes, and
// of the heap at which it collects.
const (
	maxMemory  = 768 << 20
	softMemory = 256 << 20
)

// Main is the process: it does the job in args and tells of it on standard output.
// The program exits with what it returns. When standard input ends, the agent has
// gone, and so does it.
func Main(args []string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var job Job
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &job) != nil {
		return 2
	}
	written, err := do(job)
	r := Result{Written: written}
	if err != nil {
		r.Error = err.Error()
	}
	if json.NewEncoder(os.Stdout).Encode(r) != nil {
		return 1
	}
	return 0
}

func do(job Job) (int64, error) {
	if err := becomeUser(job); err != nil {
		return 0, fmt.Errorf("become the container's user: %w", err)
	}
	from, err := source(job.File)
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	box := "/proc/self/fd/" + strconv.Itoa(SandboxFD)
	if err := confineSelf(box); err != nil {
		return 0, fmt.Errorf("confine the process: %w", err)
	}
	root, err := os.OpenRoot(box)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	to := &unpacker{Root: root, left: job.Limit}
	return to.store(context.Background(), from, job)
}

// become gives this process the user's ids, in all its threads. A node that is not
// run by root has one user only.
func becomeUser(job Job) error {
	if os.Geteuid() != 0 {
		return nil
	}
	groups := make([]int, len(job.Groups))
	for i, g := range job.Groups {
		groups[i] = int(g)
	}
	uid, gid := int(job.UID), int(job.GID)
	return errors.Join(syscall.Setgroups(groups), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid))
}

// source opens what is to be stored. A file of the node is opened as the user whose
// container wants it, and below the directory that its operator allows: no link on
// the way leads out of it, however somebody changes them meanwhile.
func source(file string) (*os.File, error) {
	if file == "" {
		return os.NewFile(SourceFD, "source"), nil
	}
	dir := os.NewFile(SourceFD, "directory")
	defer func() { _ = dir.Close() }()
	how := unix.OpenHow{
		// Not to wait for the other end of a FIFO.
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(int(dir.Fd()), file, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is no plain file", file))
	}
	return f, nil
}

// lose takes from the process all that storing does not need.
func confineSelf(box string) error {
	debug.SetMemoryLimit(softMemory)
	for resource, limit := range map[int]uint64{unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	if weaken.Off(weaken.MesosUnpacker) {
		return nil
	}
	_, err := confine.Apply(confine.Leave{Dirs: []string{box}})
	return err
}
