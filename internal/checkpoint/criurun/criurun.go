// Package criurun is the process that becomes CRIU. The keeper starts it, so that it outlives the agent. It locks a file, which
// shows the next agent that it still works, prepares CRIU's mounts and cgroups, and executes it. Start at Main.
package criurun

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Arg is the first argument of this process. The second one is the file of its Job.
const Arg = "longshore-checkpoint-criu"

// Job is the work of a process.
type Job struct {
	// Lock is a file that is locked until CRIU has ended.
	Lock string   `json:"lock"`
	Args []string `json:"args"` // of CRIU, with its path
	Env  []string `json:"env"`
	Dir  string   `json:"dir"` // the working directory
	// Cgroups are the directories of the cgroups that the process joins, and restored processes with it.
	Cgroups []string `json:"cgroups,omitempty"`
	// NewCgroups makes a cgroup namespace after that.
	NewCgroups bool `json:"new_cgroups,omitempty"`
	// Stage is a directory for the mounts of a restore, and Namespace the file of the mount namespace that has them.
	Stage     string  `json:"stage,omitempty"`
	Namespace string  `json:"namespace,omitempty"`
	Mounts    []Mount `json:"mounts,omitempty"`
	// Files are opened for CRIU.
	Files []File `json:"files,omitempty"`
}

// Mount is a mount of Namespace that CRIU gets.
type Mount struct {
	Target string `json:"target"` // in Namespace
	Name   string `json:"name"`   // in Stage
}

// File is a file that CRIU gets as a descriptor. The number replaces the first %d in CRIU's argument Arg, which is appended after
// an argument --inherit-fd.
type File struct {
	Path  string `json:"path"`
	Write bool   `json:"write,omitempty"`
	Arg   string `json:"arg"`
}

// Main executes the job of the file args[0]. It returns only after an error, with the exit status.
func Main(args []string) int {
	runtime.LockOSThread() // namespaces belong to the thread that executes CRIU
	err := errors.New("one argument is needed: a job")
	if len(args) == 1 {
		err = run(args[0])
	}
	fmt.Fprintf(os.Stderr, "prepare CRIU: %v\n", err)
	return 1
}

func run(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var j Job
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := lock(j.Lock); err != nil {
		return err
	}
	// The files stay on the mounts of the host, where a later checkpoint expects them.
	for _, f := range j.Files {
		flags := unix.O_RDONLY
		if f.Write {
			flags = unix.O_RDWR
		}
		fd, err := unix.Open(f.Path, flags, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: f.Path, Err: err}
		}
		j.Args = append(j.Args, "--inherit-fd", strings.Replace(f.Arg, "%d", fmt.Sprint(fd), 1))
	}
	if j.Stage != "" {
		if err := j.stage(); err != nil {
			return err
		}
	}
	if err := j.joinCgroups(); err != nil {
		return err
	}
	if err := unix.Chdir(j.Dir); err != nil {
		return &os.PathError{Op: "chdir", Path: j.Dir, Err: err}
	}
	return &os.PathError{Op: "execute", Path: j.Args[0], Err: unix.Exec(j.Args[0], j.Args, j.Env)}
}

// lock locks a file. CRIU keeps the descriptor without knowing it.
func lock(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return nil
}

func (j *Job) joinCgroups() error {
	for _, dir := range j.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join the cgroup: %w", err)
		}
	}
	if j.NewCgroups {
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return os.NewSyscallError("unshare the cgroup namespace", err)
		}
	}
	return nil
}

// stage makes a mount namespace that has copies of the container's mounts in Stage.
func (j *Job) stage() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare the mount namespace", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("make mounts private", err)
	}
	if err := unix.Mount("tmpfs", j.Stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,mode=0700"); err != nil {
		return &os.PathError{Op: "mount a tmpfs on", Path: j.Stage, Err: err}
	}
	trees, err := j.trees()
	if err != nil {
		return err
	}
	for i, m := range j.Mounts {
		if err := place(trees[i], filepath.Join(j.Stage, m.Name)); err != nil {
			return fmt.Errorf("place the mount of %s: %w", m.Target, err)
		}
	}
	return nil
}

// trees copies the mounts of the container's mount namespace.
func (j *Job) trees() ([]int, error) {
	if len(j.Mounts) == 0 {
		return nil, nil
	}
	own, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/thread-self/ns/mnt", Err: err}
	}
	theirs, err := unix.Open(j.Namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: j.Namespace, Err: err}
	}
	if err := unix.Setns(theirs, unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("enter the container's mount namespace", err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/", Err: err}
	}
	var trees []int
	for _, m := range j.Mounts {
		// The image of the container may have links at this path.
		at, err := unix.Openat2(root, m.Target, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: m.Target, Err: err}
		}
		fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err != nil {
			return nil, &os.PathError{Op: "copy the mount of", Path: m.Target, Err: err}
		}
		trees = append(trees, fd)
	}
	if err := unix.Setns(own, unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("leave the container's mount namespace", err)
	}
	return trees, nil
}

// place mounts a copy on a new file or directory.
func place(tree int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
