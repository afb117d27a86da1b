package control

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// specFunc returns the spec that a request asks for. Everything that does not need the root is
// decided, or refused, before it returns.
func specFunc(req *longshorev1.CreateRequest) (core.SpecFunc, error) {
	base := ocispec.New()
	caps, err := ocispec.Capabilities(ocispec.DefaultCapabilities(), req.GetCapAdd(), req.GetCapDrop())
	if err != nil {
		return nil, err
	}
	base.Process.Terminal, base.Process.NoNewPrivileges = req.GetTty(), !req.GetNewPrivileges()
	base.Process.ConsoleSize = consoleSize(req.GetTty(), req.GetSize())
	base.Process.Capabilities = ocispec.CapabilitySets(caps)
	if err := limits(base, req); err != nil {
		return nil, err
	}
	if err := mounts(base, req); err != nil {
		return nil, err
	}
	base.Linux.Sysctl, base.Annotations = req.GetSysctls(), req.GetAnnotations()
	if err := confine(base, req); err != nil {
		return nil, err
	}
	if err := addDevices(base, req); err != nil {
		return nil, err
	}
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		s, err := finishSpec(req, base, r)
		return s, nil, err
	}, nil
}

// finishSpec adds the values that depend on the root and the image.
func finishSpec(req *longshorev1.CreateRequest, s *specs.Spec, r core.Rootfs) (*specs.Spec, error) {
	_, err := ocispec.Head{
		User: func(root *os.Root, image string) (ocispec.User, error) { return userOf(req, root, image) },
		Args: func(img *imagespec.ImageConfig) ([]string, error) {
			return ocispec.Command(img, entrypoint(req), req.GetCommand())
		},
		WorkDir: req.GetWorkdir(), Hostname: r.Sandbox.Config.Hostname, Env: [][]string{req.GetEnv()},
	}.Finish(s, r)
	return s, err
}

// entrypoint returns nil when the request keeps the image's entry point.
func entrypoint(req *longshorev1.CreateRequest) []string {
	switch {
	case req.GetEntrypoint() != "":
		return []string{req.GetEntrypoint()}
	case req.GetClearEntrypoint():
		return []string{}
	}
	return nil
}

// userOf returns the program's user, with the request's additional groups.
func userOf(req *longshorev1.CreateRequest, root *os.Root, image string) (ocispec.User, error) {
	user, err := ocispec.UserNamed(req.GetUser())(root, image)
	if err != nil || len(req.GetGroups()) == 0 {
		return user, err
	}
	files, err := ocispec.ReadUserFiles(root)
	if err != nil {
		return user, err
	}
	for _, g := range req.GetGroups() {
		found, err := files.LookUp("0:" + g)
		if err != nil {
			return user, err
		}
		if gid := found.GID; !slices.Contains(user.AdditionalGids, gid) {
			user.AdditionalGids = append(user.AdditionalGids, gid)
		}
	}
	return user, nil
}

// mounts adds the request's binds and file systems in memory to the mounts of every container. The
// engine adds volumes.
func mounts(s *specs.Spec, req *longshorev1.CreateRequest) error {
	list, err := memoryMounts(req)
	if err != nil {
		return err
	}
	for _, m := range req.GetMounts() {
		if !path.IsAbs(m.GetSource()) {
			continue
		}
		b, err := ocispec.Bind{Source: path.Clean(m.GetSource()), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadOnly(), Propagation: m.GetPropagation()}.Mount()
		if err != nil {
			return err
		}
		list = append(list, b)
	}
	ocispec.AddMounts(s, list)
	return nil
}

// execConfig returns a further process like the container's own, with the request's changes.
func execConfig(c core.Container, req *longshorev1.ExecStart) (core.ProcessConfig, error) {
	var cfg core.ProcessConfig
	for _, e := range req.GetEnv() {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return cfg, invalid.Errorf("environment variable %q is not NAME=value", name)
		}
	}
	if c.State != core.ContainerRunning {
		return cfg, fmt.Errorf("exec in %s: it is %s: %w", c.ID.Short(), c.State, errdefs.ErrFailedPrecondition)
	}
	p, err := ocispec.ExecProcess(c.Bundle, req.GetCommand(), req.GetTty(), toSize(req.GetSize()))
	if err != nil {
		return cfg, fmt.Errorf("exec in %s: %w", c.ID.Short(), err)
	}
	if req.GetWorkdir() != "" {
		if p.Cwd = path.Clean(req.GetWorkdir()); !path.IsAbs(p.Cwd) {
			return cfg, invalid.Errorf("workdir %q is not an absolute path", req.GetWorkdir())
		}
	}
	if req.GetUser() != "" {
		if err := execUser(c, p, req.GetUser()); err != nil {
			return cfg, err
		}
	}
	if req.GetPrivileged() {
		node, err := ocispec.ReadNode()
		if err != nil {
			return cfg, err
		}
		p.Capabilities, p.NoNewPrivileges = ocispec.CapabilitySets(node.Capabilities), false
	}
	p.Env = ocispec.Env(ocispec.BaseEnv("/", "", req.GetTty()), p.Env, req.GetEnv())
	if req.GetDetach() {
		return core.ProcessConfig{Spec: p, IO: core.IO{TTY: req.GetTty(), Size: toSize(req.GetSize())}}, nil
	}
	stdin := core.StdinClosed
	if req.GetStdin() {
		stdin = core.StdinOnce
	}
	return attach.Held(p, stdin, toSize(req.GetSize())), nil
}

// consoleSize returns the size that the runtime sets before the program starts; nil when there is
// none.
func consoleSize(tty bool, requested *longshorev1.Size) *specs.Box {
	if size := toSize(requested); tty && size.Rows > 0 && size.Cols > 0 {
		return &specs.Box{Height: uint(size.Rows), Width: uint(size.Cols)}
	}
	return nil
}

// execUser makes p run as the user. It looks the user up in the container's root.
func execUser(c core.Container, p *specs.Process, user string) error {
	root, err := os.OpenRoot(filepath.Join(c.Bundle, "rootfs"))
	if err != nil {
		return fmt.Errorf("exec in %s: open its root: %w", c.ID.Short(), err)
	}
	defer func() { _ = root.Close() }()
	files, err := ocispec.ReadUserFiles(root)
	if err != nil {
		return err
	}
	found, err := files.LookUp(user)
	if err != nil {
		return err
	}
	files.SwitchUser(p, found)
	return nil
}
