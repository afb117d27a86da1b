package translate

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/weaken"
)

// hostPath is a path that a job names: in the task's directory, or, where the
// operator permits it, anywhere. The text alone decides; links are refused when
// the path is mounted.
func (a Task) hostPath(p string) (string, error) {
	abs := p
	if !path.IsAbs(abs) {
		abs = filepath.Join(a.taskDir(), p)
	}
	abs = filepath.Clean(abs)
	if _, inside := beneath.Rel(a.Nomad.GetAllocDir(), abs); inside || a.Session.Volumes {
		return abs, nil
	}
	return "", invalid.Errorf("the path %s is outside of the allocation's directory: that needs volumes.enabled of the plugin", p)
}

// MakeSources makes the directories of the key volumes that are missing, as docker does: root's, with
// the mode 0755. Below the allocation's directory no link is followed.
func (a Task) MakeSources() error {
	for _, m := range a.Conf.Mounts {
		if !m.Make {
			continue
		}
		source, err := a.hostPath(m.Source)
		if err != nil {
			return err
		}
		err = makeDir(a.Nomad.GetAllocDir(), source)
		if errors.Is(err, errNoDocker) {
			return invalid.Errorf("config.volumes: %s is the socket of a dockerd, which this node does not run: keep the job off such nodes, by a constraint that the attribute driver.%s.runtime is_not_set", m.Source, a.Session.Name)
		}
		if err != nil {
			return invalid.Errorf("config.volumes: make the source %s: %w", m.Source, err)
		}
	}
	return nil
}

// dockerSocket is the name of dockerd's socket. A directory of that name would be of no use to the task, and
// would keep a dockerd that is installed later from starting.
const dockerSocket = "docker.sock"

var errNoDocker = errors.New("the node has no dockerd")

// makeDir makes a directory unless its path exists. base is the directory below which no link is
// followed.
func makeDir(base, dir string) error {
	rel, inside := beneath.Rel(base, dir)
	if !inside {
		if _, err := os.Lstat(dir); err == nil {
			return nil
		}
		if path.Base(dir) == dockerSocket {
			return errNoDocker
		}
		return os.MkdirAll(dir, 0o755)
	}
	if _, err := beneath.Stat(base, rel); !errors.Is(err, fs.ErrNotExist) {
		return nil // it exists, or the mount reports the error
	}
	f, err := beneath.MkdirAll(base, rel, 0o755)
	if err != nil {
		return err
	}
	return f.Close()
}

// mayBind refuses a directory that contains sources of other mounts: a task that renames or
// replaces these would choose the mounts of the next start of another one. Where volumes are
// enabled a job may bind all of the node anyway.
func (a Task) mayBind(asked, abs string, readOnly bool) error {
	rel, inside := beneath.Rel(a.Nomad.GetAllocDir(), abs)
	if !inside || a.Session.Volumes || weaken.Off(weaken.NomadBinds) {
		return nil
	}
	switch {
	case rel == ".":
		return invalid.Errorf("the path %s is the allocation's directory, from which tasks are mounted: bind a directory of local, secrets or ../alloc/data, or enable volumes of the plugin", asked)
	case rel == "alloc":
		return invalid.Errorf("the path %s has the directory of logs, which tasks may only read: the task has it at NOMAD_ALLOC_DIR; bind ../alloc/data, or enable volumes of the plugin", asked)
	case !strings.Contains(rel, "/"):
		return invalid.Errorf("the path %s is a task's directory, from which the task is mounted: bind local, secrets or a directory of them, or enable volumes of the plugin", asked)
	case (rel == "alloc/logs" || strings.HasPrefix(rel, "alloc/logs/")) && !readOnly:
		return invalid.Errorf("the path %s is in the directory of logs, which tasks may only read: bind it read-only", asked)
	}
	return nil
}

// below is the trusted part of a path that a job names: the allocation's
// directory, or nothing for a path outside of it, which the operator permits. A
// path with a link below the allocation's directory is refused now, for a clear
// error; the same is found out again at the moment of mounting.
func (a Task) below(abs string) (string, error) {
	rel, inside := beneath.Rel(a.Nomad.GetAllocDir(), abs)
	if !inside {
		return "", nil
	}
	if _, err := beneath.Stat(a.Nomad.GetAllocDir(), rel); err != nil {
		return "", invalid.Errorf("mount: %v", err)
	}
	return a.Nomad.GetAllocDir(), nil
}
