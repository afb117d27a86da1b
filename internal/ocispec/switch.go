package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// SwitchUser makes a process that was made for one user run as another: with that
// user's ids, groups, capabilities and HOME. f are the files of the container's root.
//
// Root gets the bounding set in force, also with no_new_privs, because the kernel then adds nothing
// at execve. Other users get the ambient set. Groups of the first user in the files are removed;
// further ones are the request's, and stay. A HOME that is not the first user's is the request's,
// and stays. A process of the same user keeps its capabilities.
func (f UserFiles) SwitchUser(p *specs.Process, to User) {
	from := p.User
	if home, ok := variable(p.Env, "HOME"); !ok || home == f.Home(from.UID) {
		p.Env = Env(p.Env, []string{"HOME=" + to.Home})
	}
	own := append(f.MemberOf(from.UID), from.GID)
	p.User.UID, p.User.GID, p.User.Username = to.UID, to.GID, to.Username
	to.AdditionalGids = slices.Clone(to.AdditionalGids)
	for _, g := range from.AdditionalGids {
		if !slices.Contains(own, g) {
			to.AddGroup(g)
		}
	}
	p.User.AdditionalGids = to.AdditionalGids
	switch {
	case from.UID == to.UID:
	case to.UID == 0:
		setInForce(p, func(c *specs.LinuxCapabilities) []string { return c.Bounding })
	default:
		ForUser(p)
	}
}

// Home is a user's home directory; "/" when the passwd file does not say.
func (f UserFiles) Home(uid uint32) string {
	u, err := f.ByID(uid)
	if err != nil {
		return "/"
	}
	return u.Home
}

// AddHome sets HOME for a process's own user, unless the variable is set.
func (f UserFiles) AddHome(p *specs.Process) {
	if _, ok := variable(p.Env, "HOME"); !ok {
		p.Env = append(slices.Clone(p.Env), "HOME="+f.Home(p.User.UID))
	}
}

// variable returns the value of a variable in a list; the last one counts.
func variable(env []string, name string) (value string, ok bool) {
	for _, e := range slices.Backward(env) {
		if value, ok = strings.CutPrefix(e, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// ReadUserFilesBelow is ReadUserFiles for a root before its mounts are made: a file that one of
// them binds over /etc/passwd or /etc/group is read in its place.
func ReadUserFilesBelow(root *os.Root, mounts []specs.Mount) (UserFiles, error) {
	f, err := ReadUserFiles(root)
	for _, m := range mounts {
		to := map[string]*[]byte{"/etc/passwd": &f.Passwd, "/etc/group": &f.Group}[filepath.Clean(m.Destination)]
		if to == nil || !filepath.IsAbs(m.Source) || !slices.ContainsFunc(m.Options, func(o string) bool { return o == "bind" || o == "rbind" }) && m.Type != "bind" {
			continue
		}
		dir, derr := os.OpenRoot(filepath.Dir(m.Source))
		if derr != nil {
			return f, derr
		}
		*to, derr = readInside(dir, filepath.Base(m.Source))
		_ = dir.Close()
		if derr != nil {
			return f, derr
		}
	}
	return f, err
}
