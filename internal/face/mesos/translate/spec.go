package translate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// baseSpec is the part of the spec that the call alone determines.
func (l Launch) baseSpec() (*specs.Spec, error) {
	s := ocispec.New()
	p := s.Process
	p.Terminal, p.NoNewPrivileges = l.TTY(), false
	if size := Size(l.Container.GetTtyInfo()); size.Rows > 0 && size.Cols > 0 {
		p.ConsoleSize = &specs.Box{Height: uint(size.Rows), Width: uint(size.Cols)}
	}
	var err error
	if p.Capabilities, err = l.capabilities(); err != nil {
		return nil, err
	}
	if p.Rlimits, err = l.rlimits(); err != nil {
		return nil, err
	}
	if err := l.mounts(s); err != nil {
		return nil, err
	}
	ocispec.AppArmor(s, "")
	return s, ocispec.DefaultSeccomp(s)
}

// capabilities are the effective and the bounding capabilities.
func (l Launch) capabilities() (*specs.LinuxCapabilities, error) {
	info := l.Container.GetLinuxInfo()
	names := func(c *mesosv1.CapabilityInfo) ([]string, error) {
		list := make([]string, 0, len(c.GetCapabilities()))
		for _, n := range c.GetCapabilities() {
			list = append(list, n.String())
		}
		return ocispec.Capabilities(nil, list, nil)
	}
	effective, bounding := info.GetEffectiveCapabilities(), info.GetBoundingCapabilities()
	if effective == nil {
		effective = info.GetCapabilityInfo()
	}
	in := ocispec.DefaultCapabilities()
	var err error
	for _, c := range []*mesosv1.CapabilityInfo{bounding, effective} {
		if c == nil {
			continue
		}
		if in, err = names(c); err != nil {
			return nil, err
		}
	}
	sets := ocispec.CapabilitySets(in)
	if effective != nil {
		// Capabilities that a call names are effective for users other than root too.
		sets.Ambient, sets.Inheritable = slices.Clone(in), slices.Clone(in)
	}
	if bounding == nil {
		return sets, nil
	}
	if sets.Bounding, err = names(bounding); err != nil {
		return nil, err
	}
	for _, c := range in {
		if !slices.Contains(sets.Bounding, c) {
			return nil, invalid.Plainf("linux_info: effective capability %s is not in the bounding set", c)
		}
	}
	return sets, nil
}

// rlimits are the resource limits of the process.
func (l Launch) rlimits() ([]specs.POSIXRlimit, error) {
	var list []specs.POSIXRlimit
	for _, r := range l.Container.GetRlimitInfo().GetRlimits() {
		name, ok := strings.CutPrefix(r.GetType().String(), "RLMT_")
		switch {
		case !ok:
			return nil, invalid.Plainf("rlimit_info: a limit without a type")
		case (r.Hard == nil) != (r.Soft == nil):
			return nil, invalid.Plainf("rlimit_info: %s has one of hard and soft only", name)
		case r.GetSoft() > r.GetHard():
			return nil, invalid.Plainf("rlimit_info: %s has a soft limit above the hard one", name)
		}
		p := specs.POSIXRlimit{Type: "RLIMIT_" + name, Hard: math.MaxUint64, Soft: math.MaxUint64}
		if r.Hard != nil {
			p.Hard, p.Soft = r.GetHard(), r.GetSoft()
		}
		list = append(list, p)
	}
	return list, nil
}

// sandboxDir is the path of the sandbox in the container. With the host's root it is
// the same as on the host.
func (l Launch) sandboxDir() string {
	if l.Image() == "" {
		return l.Dir
	}
	return ImageSandboxDir
}

// hideAgentRoot makes the sandbox reachable for every user of a container with the host's root: it
// mounts an empty searchable directory over AgentRoot, and then the sandbox in it.
func (l Launch) hideAgentRoot(s *specs.Spec) {
	if l.Image() != "" || l.AgentRoot == "" || !strings.HasPrefix(l.Dir, path.Clean(l.AgentRoot)+"/") {
		return
	}
	s.Mounts = ocispec.AddMount(s.Mounts, specs.Mount{
		Destination: path.Clean(l.AgentRoot), Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "ro", "mode=755", "size=64k"},
	})
}

// mounts adds the mounts of the sandbox and the volumes. The directory with the
// sandboxes of nested containers is mounted read-only over itself: the container can
// read in it, but can neither write there nor replace it by a link.
func (l Launch) mounts(s *specs.Spec) error {
	l.hideAgentRoot(s)
	binds := []ocispec.Bind{
		{Source: l.Dir, Below: l.WorkDir, Target: l.sandboxDir()},
		{Source: filepath.Join(l.Dir, sandbox.Nested), Below: l.WorkDir, Target: path.Join(l.sandboxDir(), sandbox.Nested), ReadOnly: true},
	}
	var asked []specs.Mount
	for _, b := range binds {
		m, err := b.Mount()
		if err != nil {
			return err
		}
		asked = append(asked, m)
	}
	images := 0
	for _, v := range l.Container.GetVolumes() {
		m, err := l.volumeMount(v, images)
		if err != nil {
			return err
		}
		if v.Image != nil {
			images++
		}
		asked = append(asked, m)
	}
	ocispec.AddMounts(s, asked)
	return nil
}

// volumeMount is the mount of a volume; images is how many image volumes come before
// it.
func (l Launch) volumeMount(v *mesosv1.Volume, images int) (specs.Mount, error) {
	if v.Image != nil {
		return l.imageMount(v, images)
	}
	b, err := l.volumeBind(v)
	if err != nil {
		return specs.Mount{}, err
	}
	return b.Mount()
}

// volumeTarget is the bind of a volume without its source.
func (l Launch) volumeTarget(v *mesosv1.Volume) (ocispec.Bind, error) {
	b := ocispec.Bind{Target: v.GetContainerPath(), ReadOnly: v.GetMode() == mesosv1.Volume_RO}
	if !path.IsAbs(b.Target) {
		b.Target = path.Join(l.sandboxDir(), path.Clean("/"+b.Target))
	}
	b.Target = path.Clean(b.Target)
	if b.Target == "/" || b.Target == l.sandboxDir() || strings.HasPrefix(b.Target+"/", path.Join(l.sandboxDir(), sandbox.Nested)+"/") {
		return b, invalid.Plainf("volume: container_path %q hides the sandbox or the root", v.GetContainerPath())
	}
	return b, nil
}

// volumeBind is the bind of a volume that is not an image.
func (l Launch) volumeBind(v *mesosv1.Volume) (ocispec.Bind, error) {
	b, err := l.volumeTarget(v)
	if err != nil {
		return b, err
	}
	source := v.GetSource()
	switch {
	case v.HostPath != nil && path.IsAbs(v.GetHostPath()):
		b.Source = path.Clean(v.GetHostPath())
		return b, nil
	case v.HostPath != nil:
		return l.sandboxBind(b, l.Dir, v.GetHostPath())
	case source.GetType() == mesosv1.Volume_Source_HOST_PATH:
		b.Source = path.Clean(source.GetHostPath().GetPath())
		switch source.GetHostPath().GetMountPropagation().GetMode() {
		case mesosv1.MountPropagation_HOST_TO_CONTAINER:
			b.Propagation = "rslave"
		case mesosv1.MountPropagation_BIDIRECTIONAL:
			b.Propagation = "rshared"
		case mesosv1.MountPropagation_UNKNOWN:
		}
		return b, nil
	case source.GetType() == mesosv1.Volume_Source_SANDBOX_PATH:
		dir := l.Dir
		if source.GetSandboxPath().GetType() == mesosv1.Volume_Source_SandboxPath_PARENT {
			if l.Parent == nil {
				return b, invalid.Plainf("volume: sandbox_path of PARENT in a container that has none")
			}
			dir = l.ParentRecord.Dir
		}
		return l.sandboxBind(b, dir, source.GetSandboxPath().GetPath())
	}
	return b, invalid.Plainf("volume at %s: only images, host_path and sandbox_path are known here", v.GetContainerPath())
}

// sandboxBind binds a directory of a sandbox, which is created if it does not exist. No
// link is followed, neither now nor when the directory is mounted, because containers
// own these paths.
func (l Launch) sandboxBind(b ocispec.Bind, dir, rel string) (ocispec.Bind, error) {
	if path.IsAbs(rel) || !filepath.IsLocal(rel) {
		return b, invalid.Plainf("volume: %q is not a path in a sandbox", rel)
	}
	// A container that could write there could replace a directory on our way by a link.
	if c := path.Clean(rel); c == "." || c == sandbox.Nested || strings.HasPrefix(c, sandbox.Nested+"/") {
		return b, invalid.Plainf("volume: %q has the sandboxes of nested containers in it", rel)
	}
	b.Source, b.Below = filepath.Join(dir, rel), l.WorkDir
	below, ok := beneath.Rel(l.WorkDir, b.Source)
	if !ok {
		return b, invalid.Plainf("volume: the sandbox %s is not in the work directory %s", dir, l.WorkDir)
	}
	made, err := beneath.MkdirAll(l.WorkDir, below, 0o755)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return b, invalid.Plainf("volume: %q goes by a link or a file", rel)
	}
	if err != nil {
		return b, fmt.Errorf("volume: %w", err)
	}
	return b, made.Close()
}

// specFunc completes the spec with the values that depend on the root and the image: user, command,
// environment and working directory. It gives the sandbox to the user.
func (l Launch) specFunc(s *specs.Spec) core.SpecFunc {
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		own, err := environment(l.Command)
		if err != nil {
			return nil, nil, err
		}
		user, err := ocispec.Head{
			User: func(root *os.Root, _ string) (ocispec.User, error) {
				user, err := ocispec.UserNamed(l.userName())(root, "")
				if err != nil {
					return user, err
				}
				return user, l.checkUser(user.User)
			},
			Args: l.imageArgs, DefaultDir: l.sandboxDir(), Hostname: r.Sandbox.Config.Hostname,
			Env: [][]string{{"MESOS_SANDBOX=" + l.sandboxDir()}, own},
		}.Finish(s, r)
		if err != nil {
			return nil, nil, err
		}
		return s, nil, l.chown(user.User)
	}
}

// imageArgs is the command line, with that of the image as the default.
func (l Launch) imageArgs(img *imagespec.ImageConfig) ([]string, error) {
	command := img.Cmd
	if len(l.Command.GetArguments()) > 0 { // they replace the arguments of the image, but not its program
		command = command[:min(len(command), 1)]
		if len(img.Entrypoint) > 0 {
			command = nil
		}
	}
	return l.args(slices.Concat(img.Entrypoint, command))
}

// checkUser calls PermitUser.
func (l Launch) checkUser(u specs.User) error {
	if l.PermitUser == nil {
		return nil
	}
	return l.PermitUser(u)
}

// chown gives the sandbox to the user, but not the directory for nested sandboxes.
func (l Launch) chown(u specs.User) error {
	rel, ok := beneath.Rel(l.WorkDir, l.Dir)
	if !ok {
		return fmt.Errorf("the sandbox %s is not in the work directory %s", l.Dir, l.WorkDir)
	}
	root, err := beneath.Root(l.WorkDir, rel)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.Lchown(".", int(u.UID), int(u.GID))
}

// environment are the variables of a command. Only secrets by value are supported.
func environment(c *mesosv1.CommandInfo) ([]string, error) {
	var env []string
	for _, v := range c.GetEnvironment().GetVariables() {
		value := v.GetValue()
		if v.GetType() == mesosv1.Environment_Variable_SECRET {
			if v.GetSecret().GetType() != mesosv1.Secret_VALUE || v.GetSecret().Value == nil {
				return nil, invalid.Plainf("environment variable %s: secrets are taken by value only", v.GetName())
			}
			value = string(v.GetSecret().GetValue().GetData())
		}
		env = append(env, v.GetName()+"="+value)
	}
	return env, nil
}

// Process is the process of a session: the parent's own process with another command.
func (l Launch) Process() (*specs.Process, error) {
	if l.Container.GetMesos().GetImage() != nil {
		return nil, invalid.Plainf("A 'rootfs' cannot be set for DEBUG containers")
	}
	if len(l.Command.GetUris()) > 0 {
		return nil, invalid.Plainf("command.uris: a session has no sandbox of its own")
	}
	if len(l.Container.GetVolumes()) > 0 {
		return nil, invalid.Plainf("Volumes are not supported for DEBUG containers")
	}
	args, err := l.args(nil)
	if err != nil {
		return nil, err
	}
	p, err := ocispec.ExecProcess(l.Parent.Bundle, args, l.TTY(), Size(l.Container.GetTtyInfo()))
	if err != nil {
		return nil, err
	}
	if u := l.Command.GetUser(); u != "" && u != l.ParentRecord.User {
		return nil, invalid.Plainf("command.user: a session runs as its container does")
	}
	if err := l.checkUser(p.User); err != nil {
		return nil, err
	}
	own, err := environment(l.Command)
	if err != nil {
		return nil, err
	}
	p.Env = ocispec.Env(p.Env, own)
	return p, nil
}
