package translate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
	"github.com/longshore/longshore/internal/weaken"
)

// base is the part of the spec that depends on the task alone. It refuses invalid settings before a
// root is made.
func (a Task) base() (*specs.Spec, error) {
	s := ocispec.New()
	caps, err := a.capabilities()
	if err != nil {
		return nil, err
	}
	p := s.Process
	p.Terminal, p.NoNewPrivileges, p.Capabilities = a.Conf.TTY, a.Conf.Security.NoNewPrivileges, ocispec.CapabilitySets(caps)
	if a.Conf.OOMScoreAdj != 0 {
		score := a.Conf.OOMScoreAdj
		p.OOMScoreAdj = &score
	}
	for name, value := range a.Conf.Ulimits {
		l, err := ocispec.Rlimit(name + "=" + value)
		if err != nil {
			return nil, err
		}
		p.Rlimits = append(p.Rlimits, l)
	}
	slices.SortFunc(p.Rlimits, func(x, y specs.POSIXRlimit) int { return strings.Compare(x.Type, y.Type) })
	devices := s.Linux.Resources.Devices
	if s.Linux.Resources, err = a.resources(); err != nil {
		return nil, err
	}
	s.Linux.Resources.Devices = devices
	if _, err := sysctl.ParseAll(a.Conf.Sysctls); err != nil {
		return nil, fmt.Errorf("config.sysctl: %w", err)
	}
	s.Linux.Sysctl = a.Conf.Sysctls
	if err := a.mounts(s); err != nil {
		return nil, err
	}
	if err := a.devices(s); err != nil {
		return nil, err
	}
	ocispec.AppArmor(s, a.Conf.Security.AppArmor)
	ocispec.SetLevels(s, a.Conf.Security.Landlock)
	if a.Conf.Security.AllPaths {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	}
	return s, a.filter(s)
}

// filter takes the walls down, or puts up the system call filter.
func (a Task) filter(s *specs.Spec) error {
	if a.Conf.Privileged {
		return ocispec.AllPrivileges(s)
	}
	switch profile := a.Conf.Security.Seccomp; profile {
	case "":
		return ocispec.DefaultSeccomp(s)
	case "unconfined":
		return nil
	default:
		body, err := os.ReadFile(profile)
		if err != nil {
			return invalid.Errorf("config.security_opt seccomp: %v", err)
		}
		return ocispec.LoadSeccomp(s, body)
	}
}

// mounts are those of every container, Nomad's promised ones for every task, Nomad's mounts for
// this one, and the job's own.
func (a Task) mounts(s *specs.Spec) error {
	alloc := filepath.Join(a.Nomad.GetAllocDir(), "alloc")
	binds := []ocispec.Bind{
		{Source: alloc, Target: a.envDir("NOMAD_ALLOC_DIR", "/alloc")},
		{Source: filepath.Join(a.taskDir(), "local"), Target: a.envDir("NOMAD_TASK_DIR", "/local")},
		{Source: filepath.Join(a.taskDir(), "secrets"), Target: a.envDir("NOMAD_SECRETS_DIR", "/secrets")},
	}
	// A task must not redirect our writes to the logs.
	logs := ocispec.Bind{Source: filepath.Join(alloc, "logs"), Target: path.Join(binds[0].Target, "logs"), ReadOnly: true}
	switch _, err := beneath.Stat(a.Nomad.GetAllocDir(), "alloc/logs"); {
	case err == nil:
		binds = append(binds, logs)
	case !errors.Is(err, fs.ErrNotExist):
		return invalid.Errorf("directory of logs: %v", err)
	}
	labels := map[string]string{binds[0].Source: ocispec.RelabelShared, binds[1].Source: ocispec.RelabelPrivate, binds[2].Source: ocispec.RelabelPrivate}
	for i := range binds {
		binds[i].Below, binds[i].Relabel = a.Nomad.GetAllocDir(), labels[binds[i].Source]
	}
	for _, m := range a.Nomad.GetMounts() {
		b := ocispec.Bind{Source: m.GetHostPath(), Target: path.Clean(m.GetTaskPath()), ReadOnly: m.GetReadonly()}
		switch m.GetPropagationMode() {
		case "", "private":
		case "host-to-task":
			b.Propagation = "rslave"
		case "bidirectional":
			b.Propagation = "rshared"
		default:
			return invalid.Errorf("mount of %s: propagation %q", m.GetHostPath(), m.GetPropagationMode())
		}
		binds = append(binds, b)
	}
	var all []specs.Mount
	for _, b := range binds {
		m, err := b.Mount()
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	own, err := a.ownMounts()
	if err != nil {
		return err
	}
	all = append(all, own...)
	ocispec.AddMounts(s, all)
	if mode := a.network(); a.Conf.Users && (mode == netGroup || mode == netTask) {
		ocispec.ShowNodeSys(s)
	}
	if a.Conf.ShmBytes > 0 {
		s.Mounts = ocispec.AddMount(s.Mounts, tmpfs("/dev/shm", a.Conf.ShmBytes, 0o1777, "nosuid", "nodev", "noexec"))
	}
	return nil
}

// envDir returns a directory's path in the task's environment.
func (a Task) envDir(name, otherwise string) string {
	if d := a.Nomad.GetEnv()[name]; path.IsAbs(d) {
		return path.Clean(d)
	}
	return otherwise
}

func tmpfs(target string, size, mode int64, options ...string) specs.Mount {
	if size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	if mode == 0 {
		mode = 0o1777
	}
	return specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: target, Options: append(options, fmt.Sprintf("mode=%o", mode))}
}

// ownMounts are the job's, but for volumes, which the engine mounts.
func (a Task) ownMounts() ([]specs.Mount, error) {
	var list []specs.Mount
	images := 0
	for _, m := range a.Conf.Mounts {
		switch m.Type {
		case "tmpfs":
			t := tmpfs(m.Target, m.Size, m.Mode, append([]string{"nosuid", "nodev"}, m.Flags...)...)
			if m.ReadOnly {
				t.Options = append(t.Options, "ro")
			}
			list = append(list, t)
		case "bind":
			source, err := a.hostPath(m.Source)
			if err != nil {
				return nil, err
			}
			below, err := a.below(source)
			if err != nil {
				return nil, err
			}
			bind, err := ocispec.Bind{
				Source: source, Below: below, Target: m.Target, ReadOnly: m.ReadOnly, Propagation: m.Propagation, Relabel: m.Relabel,
			}.Mount()
			if err != nil {
				return nil, err
			}
			bind.Options = append(bind.Options, m.Flags...)
			list = append(list, bind)
		case "image":
			list = append(list, ocispec.ImageMount(m.Target, images))
			images++
		}
	}
	return list, nil
}

func (a Task) devices(s *specs.Spec) error {
	list := slices.Clone(a.Conf.Devices)
	// A device by its CDI name may bring mounts and hooks too.
	for key, asked := range map[string]bool{"devices": len(list) > 0, "cdi_devices": len(a.Conf.CDI) > 0 && !weaken.Off(weaken.NomadCDI)} {
		if asked && !a.Session.AllowPrivileged && !a.Session.Volumes {
			return invalid.Errorf("config.%s is not permitted on this node: volumes.enabled or allow_privileged of the plugin", key)
		}
	}
	for _, d := range a.Nomad.GetDevices() {
		list = append(list, ocispec.Device{Source: d.GetHostPath(), Target: d.GetTaskPath(), Access: d.GetCgroupPermissions()})
	}
	for _, d := range list {
		devices, rules, err := ocispec.HostDevice(d)
		if err != nil {
			return err
		}
		ocispec.AddDevice(s, devices, rules)
	}
	return nil
}

// finish adds the values that depend on the root and the image: user, command, environment and
// directory.
func (a Task) finish(s *specs.Spec) core.SpecFunc {
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		h := ocispec.Head{
			User: a.user,
			Args: func(img *imagespec.ImageConfig) ([]string, error) {
				return ocispec.Command(img, a.Conf.Entrypoint, a.Conf.Command)
			},
			WorkDir: a.Conf.WorkDir, Hostname: hostnameOf(r.Sandbox), Env: [][]string{envList(a.Nomad.GetEnv()), envList(a.portEnv()), envList(a.Conf.Env)},
		}
		if a.asExec() {
			h.Program = asExec
		}
		_, err := h.Finish(s, r)
		return s, nil, err
	}
}

// user returns the task's user: its own, or the image's.
func (a Task) user(root *os.Root, otherwise string) (ocispec.User, error) {
	files, err := a.userFiles(root)
	if err != nil {
		return ocispec.User{}, err
	}
	asked := a.Nomad.GetUser()
	if asked == "" {
		asked = otherwise
	}
	if asked == "" && a.asExec() {
		asked = "nobody"
	}
	user, err := files.LookUp(asked)
	if err != nil {
		return user, err
	}
	for _, g := range a.Conf.Groups {
		gid, err := files.GroupID(g)
		if err != nil {
			return user, err
		}
		user.AddGroup(gid)
	}
	return user, nil
}

// hostnameOf is the one that a task sees: its own, or the node's.
func hostnameOf(sb core.Sandbox) string {
	if sb.Config.Namespaces.UTS.Mode != core.Host {
		return sb.Config.Hostname
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// portEnv has the ports of port_map in the variables that Nomad has for ports of tasks.
func (a Task) portEnv() map[string]string {
	env := map[string]string{}
	for label, port := range a.Conf.PortMap {
		env["NOMAD_PORT_"+strings.Map(func(r rune) rune {
			if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, label)] = strconv.Itoa(port)
	}
	return env
}

func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}
