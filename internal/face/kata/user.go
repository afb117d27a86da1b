package kata

import (
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// setUser looks up a process's user in a container's own files, and sets its HOME. The names are those of by or, if
// that is nil, the username of the spec.
func setUser(p *specs.Process, by *katav1.StringUser, files ocispec.UserFiles) error {
	if by == nil {
		return setUsername(p, files)
	}
	name := by.GetUid()
	if by.GetGid() != "" {
		name += ":" + by.GetGid()
	}
	user, err := files.LookUp(name)
	if err != nil {
		return err
	}
	for _, g := range by.GetAdditionalGids() {
		gid, err := files.GroupID(g)
		if err != nil {
			return err
		}
		user.AddGroup(gid)
	}
	files.SwitchUser(p, user)
	p.User.AdditionalGids = user.AdditionalGids // the request has them all
	return nil
}

// setUsername looks up the spec's username, if there is one. A spec with a uid besides must have the same user's.
func setUsername(p *specs.Process, files ocispec.UserFiles) error {
	if p.User.Username != "" {
		user, err := files.LookUp(p.User.Username)
		if err != nil {
			return err
		}
		if p.User.UID == 0 && p.User.GID == 0 {
			files.SwitchUser(p, user)
			return nil
		}
		if p.User.UID != user.UID {
			return invalid.Errorf("user: %q has the uid %d in the container, and the spec has %d", clip(p.User.Username), user.UID, p.User.UID)
		}
	}
	files.AddHome(p)
	return nil
}

// named reports whether the files of the container are needed to know a process's user.
func named(p *specs.Process, by *katav1.StringUser) bool { return by != nil || p.User.Username != "" }

// mainUser is setUser for a container's main process.
func mainUser(p *specs.Process, by *katav1.StringUser, root *os.Root, mounts []specs.Mount) error {
	files, err := ocispec.ReadUserFilesBelow(root, mounts)
	if err != nil && named(p, by) { // for a number they are needed for HOME only
		return err
	}
	return setUser(p, by, files)
}

// execUser is setUser for a further process of a container that runs.
func execUser(p *specs.Process, by *katav1.StringUser, pid int) error {
	files, err := filesOf(pid)
	if err != nil && named(p, by) {
		return fmt.Errorf("root of the container: %w", err)
	}
	return setUser(p, by, files)
}

// filesOf reads the files of the root that a process has.
func filesOf(pid int) (ocispec.UserFiles, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return ocispec.UserFiles{}, err
	}
	defer func() { _ = root.Close() }()
	return ocispec.ReadUserFiles(root)
}

// guestHooks are the programs of the machine's image that run beside each container.
func (f *Face) guestHooks() guest.Hooks {
	f.making.Lock()
	defer f.making.Unlock()
	return f.hooks
}

// addHooks adds the machine's hooks behind those of a container. Each gets its name and
// its kind as arguments.
func addHooks(s *specs.Spec, more guest.Hooks) {
	if len(more.Prestart)+len(more.Poststart)+len(more.Poststop) == 0 {
		return
	}
	if s.Hooks == nil {
		s.Hooks = &specs.Hooks{}
	}
	add := func(to *[]specs.Hook, programs []string, kind string) {
		for _, p := range programs {
			*to = append(slices.Clone(*to), specs.Hook{Path: p, Args: []string{p, kind}, Timeout: new(hookTimeout)})
		}
	}
	add(&s.Hooks.Prestart, more.Prestart, "prestart") //nolint:staticcheck // as the shim says it
	add(&s.Hooks.Poststart, more.Poststart, "poststart")
	add(&s.Hooks.Poststop, more.Poststop, "poststop")
}
