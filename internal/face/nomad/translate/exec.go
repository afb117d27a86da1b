package translate

import (
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/ocispec"
)

// asExec reports whether the task was written for Nomad's exec driver, which knows
// no images: its root is its directory.
func (a Task) asExec() bool { return a.Session.Name == plugin.ExecName && a.Conf.Image == "" }

// userFiles are the root's. Exec's users are the node's: its root may name none.
func (a Task) userFiles(root *os.Root) (ocispec.UserFiles, error) {
	if !a.asExec() {
		return ocispec.ReadUserFiles(root)
	}
	node, err := os.OpenRoot("/")
	if err != nil {
		return ocispec.UserFiles{}, err
	}
	defer func() { _ = node.Close() }()
	return ocispec.ReadUserFiles(node)
}

// asExec changes a process as the exec driver does: the program that it would find, the user's
// variables, and capabilities in force for any user.
func asExec(p *specs.Process, root *os.Root, user ocispec.User) {
	p.Args[0] = program(root, p.Args[0])
	who := []string{"HOME=" + user.Home}
	if user.Name != "" {
		who = append(who, "USER="+user.Name, "LOGNAME="+user.Name)
	}
	p.Env = ocispec.Env(p.Env, who)
	caps := *p.Capabilities
	caps.Inheritable, caps.Ambient = slices.Clone(caps.Bounding), slices.Clone(caps.Bounding)
	p.Capabilities = &caps
}

// program finds the program that the exec driver would run by a name: in the task's own directories
// before the system's. It makes the file executable, because an artifact may not be.
func program(root *os.Root, name string) string {
	if path.IsAbs(name) {
		executable(root, name[1:])
		return name
	}
	for _, dir := range []string{"local", "", "usr/local/bin", "usr/bin", "bin"} {
		if p := path.Join(dir, name); executable(root, p) {
			return "/" + p
		}
	}
	return name
}

// executable reports whether there is a program; a link may lead anywhere inside.
func executable(root *os.Root, name string) bool {
	st, err := root.Lstat(name)
	if err != nil || st.IsDir() {
		return false
	}
	const all = 0o555
	if mode := st.Mode(); mode.IsRegular() && mode&all != all {
		return root.Chmod(name, mode|fs.FileMode(all)) == nil
	}
	return true
}
