package control

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/profiles/seccomp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// specFunc is the spec that a request asks for. What does not need the root is
// decided, and refused, now.
func specFunc(req *longshorev1.CreateRequest) (core.SpecFunc, error) {
	caps, err := capabilities(req)
	if err != nil {
		return nil, err
	}
	score := 0 // not the agent's own, which is far lower
	base := specs.Spec{
		Process: &specs.Process{
			Terminal: req.GetTty(), Capabilities: caps, NoNewPrivileges: !req.GetPrivileged() && !req.GetNewPrivileges(), OOMScoreAdj: &score,
		},
		Linux: &specs.Linux{Resources: limits(req)},
	}
	if base.Mounts, err = mounts(req); err != nil {
		return nil, err
	}
	if err := confine(req, &base); err != nil {
		return nil, err
	}
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, error) { return finishSpec(req, &base, r) }, nil
}

// finishSpec adds what only the root and the image tell.
func finishSpec(req *longshorev1.CreateRequest, s *specs.Spec, r core.Rootfs) (*specs.Spec, error) {
	img := r.Image
	if img == nil {
		img = &imagespec.ImageConfig{}
	}
	asked := req.GetUser()
	if asked == "" {
		asked = img.User
	}
	user, home, err := findUser(r.FS, asked)
	if err != nil {
		return nil, err
	}
	p := s.Process
	p.User = user
	if p.Args = args(req, img); len(p.Args) == 0 || p.Args[0] == "" {
		return nil, invalid("no command, neither asked for nor in the image")
	}
	p.Cwd = "/"
	for _, dir := range []string{img.WorkingDir, req.GetWorkdir()} {
		if dir != "" {
			p.Cwd = path.Clean("/" + dir)
		}
	}
	p.Env = environment(environ{home: home, hostname: r.Sandbox.Config.Hostname, tty: req.GetTty()}, img.Env, req.GetEnv())
	asNobody(p)
	return s, nil
}

// args follow docker's rule: a new entry point drops the image's command.
func args(req *longshorev1.CreateRequest, img *imagespec.ImageConfig) []string {
	entry, cmd := img.Entrypoint, img.Cmd
	if req.GetEntrypoint() != "" || req.GetClearEntrypoint() {
		entry, cmd = nil, nil
		if req.GetEntrypoint() != "" {
			entry = []string{req.GetEntrypoint()}
		}
	}
	if len(req.GetCommand()) > 0 {
		cmd = req.GetCommand()
	}
	return slices.Concat(entry, cmd)
}

// environ is what programs expect to find in the environment.
type environ struct {
	home, hostname string
	tty            bool
}

// environment puts the lists over each other, later ones over earlier ones, and
// adds what none of them says.
func environment(e environ, lists ...[]string) []string {
	var env []string
	set := func(entry string) {
		name, _, _ := strings.Cut(entry, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, entry)
	}
	set("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if e.hostname != "" {
		set("HOSTNAME=" + e.hostname)
	}
	if e.tty {
		set("TERM=xterm")
	}
	set("HOME=" + e.home)
	for _, l := range lists {
		for _, entry := range l {
			if strings.Contains(entry, "=") {
				set(entry)
			}
		}
	}
	return env
}

// mounts are those every container has, and the request's binds. Volumes are
// the engine's part.
func mounts(req *longshorev1.CreateRequest) ([]specs.Mount, error) {
	mode := "ro"
	if req.GetPrivileged() {
		mode = "rw"
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", mode}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", mode}},
	}
	var binds []specs.Mount
	for _, m := range req.GetMounts() {
		if !path.IsAbs(m.GetSource()) {
			continue
		}
		b, err := ocispec.Bind{Source: path.Clean(m.GetSource()), Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadOnly()}.Mount()
		if err != nil {
			return nil, err
		}
		binds = append(binds, b)
	}
	// Parents before children, whatever order they were given in.
	slices.SortStableFunc(binds, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	for _, b := range binds {
		list = slices.DeleteFunc(list, func(m specs.Mount) bool { return m.Destination == b.Destination })
	}
	return append(list, binds...), nil
}

// cpuPeriod is what quotas are counted in, microseconds; minQuota is the least
// the kernel takes.
const (
	cpuPeriod = 100_000
	minQuota  = 1_000
)

func limits(req *longshorev1.CreateRequest) *specs.LinuxResources {
	out := &specs.LinuxResources{}
	if n := req.GetMemoryBytes(); n > 0 {
		limit := int64(n)
		out.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if n := req.GetCpus(); n > 0 {
		period, quota := uint64(cpuPeriod), max(int64(n*cpuPeriod), minQuota)
		out.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	if n := req.GetPids(); n > 0 {
		out.Pids = &specs.LinuxPids{Limit: &n}
	}
	return out
}

// confine hides parts of /proc and /sys, filters system calls and closes
// devices, unless the container is privileged.
func confine(req *longshorev1.CreateRequest, s *specs.Spec) error {
	if req.GetPrivileged() {
		s.Linux.Devices = nodeDevices("/dev")
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		return nil
	}
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	s.Linux.MaskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	profile, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return fmt.Errorf("default seccomp profile: %w: %w", err, errdefs.ErrInternal)
	}
	s.Linux.Seccomp = profile
	return nil
}

// execConfig is a further process: as the container's own, but for what the
// request says.
func execConfig(c core.Container, req *longshorev1.ExecStart) (core.ProcessConfig, error) {
	var cfg core.ProcessConfig
	for _, e := range req.GetEnv() {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || strings.ContainsRune(e, 0) {
			return cfg, invalid("environment variable %q is not NAME=value", name)
		}
	}
	if c.State != core.ContainerRunning {
		return cfg, fmt.Errorf("exec in %s: it is %s: %w", c.ID.Short(), c.State, errdefs.ErrFailedPrecondition)
	}
	p, err := bundleProcess(c.Bundle)
	if err != nil {
		return cfg, fmt.Errorf("exec in %s: %w", c.ID.Short(), err)
	}
	p.Terminal, p.ConsoleSize, p.Args, p.CommandLine = req.GetTty(), nil, req.GetCommand(), ""
	if req.GetWorkdir() != "" {
		if p.Cwd = path.Clean(req.GetWorkdir()); !path.IsAbs(p.Cwd) {
			return cfg, invalid("workdir %q is not an absolute path", req.GetWorkdir())
		}
	}
	home := ""
	if req.GetUser() != "" {
		if home, err = execUser(c, p, req.GetUser()); err != nil {
			return cfg, err
		}
	}
	if req.GetPrivileged() {
		all := capabilityNames()
		p.Capabilities, p.NoNewPrivileges = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}, false
	}
	env := p.Env
	if home != "" {
		env = append(env, "HOME="+home)
	}
	p.Env = environment(environ{home: "/", tty: req.GetTty()}, env, req.GetEnv())
	cfg = core.ProcessConfig{Spec: p, IO: core.IO{TTY: req.GetTty(), Size: toSize(req.GetSize())}}
	if req.GetDetach() {
		return cfg, nil
	}
	// Nobody else will read this output: it is held until we have, and not a
	// byte of it is lost.
	cfg.IO.Hold, cfg.Ephemeral = true, true
	cfg.Attach = &core.StreamOptions{Stdin: req.GetStdin(), Stdout: true, Stderr: !req.GetTty(), Exclusive: true}
	if req.GetStdin() {
		cfg.IO.Stdin = core.StdinOnce
	}
	return cfg, nil
}

// bundleProcess is the process of a container's spec as it was started.
func bundleProcess(bundle string) (*specs.Process, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	var s specs.Spec
	if err := json.Unmarshal(raw, &s); err != nil || s.Process == nil {
		return nil, fmt.Errorf("read its spec: no process in it: %w: %w", err, errdefs.ErrDataLoss)
	}
	return s.Process, nil
}

// execUser makes p another user's, who is looked up in the container's root.
func execUser(c core.Container, p *specs.Process, user string) (home string, err error) {
	root, err := os.OpenRoot(filepath.Join(c.Bundle, "rootfs"))
	if err != nil {
		return "", fmt.Errorf("exec in %s: open its root: %w", c.ID.Short(), err)
	}
	defer func() { _ = root.Close() }()
	if p.User, home, err = findUser(root, user); err != nil {
		return "", err
	}
	asNobody(p)
	return home, nil
}

// asNobody takes the capabilities in force from a process that is not root, as
// the kernel does at setuid: it keeps what programs of root may have.
func asNobody(p *specs.Process) {
	if p.User.UID != 0 && p.Capabilities != nil {
		caps := *p.Capabilities
		caps.Effective, caps.Permitted, caps.Inheritable, caps.Ambient = nil, nil, nil, nil
		p.Capabilities = &caps
	}
}
