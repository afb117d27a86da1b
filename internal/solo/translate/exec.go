package translate

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// Exec returns the process of an exec: the container's main process with the request's changes.
func Exec(c core.Container, req *longshorev1.ExecStart) (*specs.Process, error) {
	for _, e := range req.GetEnv() {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return nil, invalid.Errorf("environment variable %q is not NAME=value", name)
		}
	}
	if !c.State.Runs() {
		return nil, fmt.Errorf("exec in %s: it is %s: %w", c.ID.Short(), c.State, errdefs.ErrFailedPrecondition)
	}
	p, err := ocispec.ExecProcess(c.Bundle, req.GetCommand(), req.GetTty(), Size(req.GetSize()))
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", c.ID.Short(), err)
	}
	if req.GetWorkdir() != "" {
		if p.Cwd = path.Clean(req.GetWorkdir()); !path.IsAbs(p.Cwd) {
			return nil, invalid.Errorf("workdir %q is not an absolute path", req.GetWorkdir())
		}
	}
	if req.GetUser() != "" {
		if err := execUser(c, p, req.GetUser()); err != nil {
			return nil, err
		}
	}
	if req.GetPrivileged() {
		node, err := ocispec.ReadNode()
		if err != nil {
			return nil, err
		}
		p.Capabilities, p.NoNewPrivileges = ocispec.CapabilitySets(node.Capabilities), false
	}
	p.Env = ocispec.Env(ocispec.BaseEnv("/", "", req.GetTty()), p.Env, req.GetEnv())
	return p, nil
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
