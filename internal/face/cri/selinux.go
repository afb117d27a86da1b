package cri

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/profile/selinux"
)

// askLabels asks for labels of the pod and of the files that its containers share: with the requested level, or with one of
// its own.
func askLabels(cfg *core.SandboxConfig, always bool, sc *v1.LinuxSandboxSecurityContext) {
	if !sc.GetPrivileged() && ocispec.SELinuxEnabled() {
		cfg.SELinux = &core.SELinux{User: sc.GetSelinuxOptions().GetUser(), Level: sc.GetSelinuxOptions().GetLevel(), Always: always || sc.GetSelinuxOptions() != nil}
	}
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
		if err := selinux.Relabel(m.GetHostPath(), files); err != nil {
			return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
	}
	return nil
}

// checkSELinux refuses face.cri.selinux where the kernel or its policy lacks the labels.
func (c Config) checkSELinux() error {
	if !c.SELinux {
		return nil
	}
	if err := selinux.Check(); err != nil {
		return fmt.Errorf("face.cri.selinux: %w", err)
	}
	return nil
}
