package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/profile/selinux"
)

// labelSandbox sets the label of the files that the pod's containers share: with the requested level, or
// with one of its own if face.cri.selinux is set. The caller calls release when the sandbox's record
// exists, or its creation has failed.
func labelSandbox(ctx context.Context, s *server, cfg *core.SandboxConfig, sc *v1.LinuxSandboxSecurityContext) (release func(), err error) {
	release = func() {}
	o := ocispec.SELinux{User: sc.GetSelinuxOptions().GetUser(), Level: sc.GetSelinuxOptions().GetLevel()}
	if sc.GetPrivileged() || !ocispec.SELinuxEnabled() || !s.cfg.SELinux && sc.GetSelinuxOptions() == nil {
		return release, nil
	}
	f, err := features(ctx, s.engine, cfg.Runtime)
	if err != nil {
		return nil, err
	}
	if f.Path != "" {
		// It would not label the standard streams, and the kernel would replace them.
		return nil, invalid.Errorf("SELinux labels: only the runtime native gives labelled containers their output, and the runtime of this pod is %s", f.Path)
	}
	if s.cfg.SELinux && o.Level == "" {
		if o.Level, release, err = freeLevel(ctx, s); err != nil {
			return nil, err
		}
	}
	if _, cfg.FileLabel, err = o.Labels(); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// freeLevel returns a level that no sandbox has.
func freeLevel(ctx context.Context, s *server) (level string, release func(), err error) {
	list, err := s.engine.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return "", nil, err
	}
	used := map[string]bool{}
	for _, sb := range list {
		used[selinux.LevelOf(sb.Config.FileLabel)] = true
	}
	return s.levels.Choose(func(level string) bool { return used[level] })
}

// label sets the process's SELinux label and the label of the container's mounts.
func (a containerAsk) label(s *specs.Spec) (err error) {
	s.Process.SelinuxLabel, s.Linux.MountLabel, err = a.labels()
	return err
}

// labels returns the requested SELinux labels of the process and its files. The level is the sandbox's
// unless the container has another one. A privileged container has no labels.
func (a containerAsk) labels() (process, files string, err error) {
	sc := a.req.GetConfig().GetLinux().GetSecurityContext()
	if sc.GetPrivileged() {
		return "", "", nil
	}
	o := sc.GetSelinuxOptions()
	if o == nil {
		o = a.pod.GetConfig().GetLinux().GetSecurityContext().GetSelinuxOptions()
	}
	l := ocispec.SELinux{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()}
	if l.Level == "" {
		l.Level = selinux.LevelOf(a.sandbox.Config.FileLabel)
	}
	return l.Labels()
}

// labelRoot sets the label of the container's files, where SELinux is on.
func (a containerAsk) labelRoot(cfg *core.ContainerConfig) (err error) {
	if ocispec.SELinuxEnabled() {
		_, cfg.FileLabel, err = a.labels()
	}
	return err
}

// relabel gives the files of those mounts that ask for it the container's label, where SELinux is on.
func (a containerAsk) relabel() error {
	_, files, err := a.labels()
	if err != nil || files == "" {
		return err
	}
	for _, m := range a.req.GetConfig().GetMounts() {
		if !m.GetSelinuxRelabel() || isImage(m) {
			continue
		}
		// A filesystem that has no labels needs none.
		if err := label.Relabel(m.GetHostPath(), files, false); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return invalid.Errorf("mount %s: selinux label: %v", m.GetContainerPath(), err)
		}
	}
	return nil
}

// checkSELinux refuses face.cri.selinux where the kernel or its policy lacks the labels.
func (c Config) checkSELinux() error {
	if !c.SELinux {
		return nil
	}
	process, files, err := ocispec.SELinux{Level: "s0:c1,c2"}.Labels()
	for _, l := range []string{process, files} {
		if err == nil {
			err = selinux.Usable(l)
		}
	}
	if err != nil {
		return fmt.Errorf("face.cri.selinux: %w", err)
	}
	return nil
}
