// Package store is the process that writes fetched files into the sandbox of a Mesos
// container, and unpacks archives there.
//
// Archives come from strangers. So the process becomes the container's user before it
// opens anything, and then gives up access to everything but the sandbox: files, system
// calls, capabilities. It must not know where the bytes come from, and has few
// dependencies. Start reading at Main.
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

// Arg is the first argument when the agent's program is executed as this process. The
// second is a Job as JSON.
const Arg = "mesos-store"

// Descriptors that the process inherits.
const (
	SourceFD  = 3 // the bytes, or the directory that Job.File is relative to
	SandboxFD = 4 // the sandbox
)

// Job is the process's job.
type Job struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// File is a path relative to SourceFD; "" if SourceFD has the bytes themselves.
	File string `json:"file,omitempty"`
	// Name is the path of the new file in the sandbox.
	Name string `json:"name"`
	// Executable files are not unpacked.
	Executable bool `json:"executable,omitempty"`
	Extract    bool `json:"extract,omitempty"`
	// Limit bounds the written bytes.
	Limit int64 `json:"limit"`
}

// Result is the outcome.
type Result struct {
	Written int64  `json:"written"` // bytes
	Error   string `json:"error,omitempty"`
}

// maxMemory limits the memory of the process, because archives can demand any amount.
// softMemory is the heap size at which it collects garbage.
const (
	maxMemory  = 768 << 20
	softMemory = 256 << 20
)

// Main is the process's main function: it does the job in args, writes a Result to
// standard output, and returns the exit status. The process exits when its standard
// input ends, because the agent is dead then.
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

// becomeUser changes the ids of all threads to those of the user. If the agent is not
// root, there is only one user.
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

// source opens the file to store. A file of the host is opened as the container's user and below an
// allowed directory; no link leads out of it, even if it is changed meanwhile.
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
		return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is not a regular file", file))
	}
	return f, nil
}

// confineSelf gives up everything that storing does not need.
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
