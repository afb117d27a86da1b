package compile

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// HookKind is one of the six lifecycle points with its hooks.
type HookKind struct {
	Name  string
	Hooks []specs.Hook
}

// HookKinds returns the six lifecycle points in the order of a container's life. The first three are those of the
// creation.
func HookKinds(h *specs.Hooks) []HookKind {
	if h == nil {
		return nil
	}
	return []HookKind{
		{"prestart", h.Prestart}, //nolint:staticcheck // deprecated, and still sent
		{"createRuntime", h.CreateRuntime},
		{"createContainer", h.CreateContainer},
		{"startContainer", h.StartContainer},
		{"poststart", h.Poststart},
		{"poststop", h.Poststop},
	}
}

// stops reports whether the child waits before pivot_root, for the hooks that run once
// the mounts are made.
func (in *Input) stops() bool {
	all := HookKinds(in.Spec.Hooks)
	return in.Park && len(all) > 0 && len(all[0].Hooks)+len(all[1].Hooks)+len(all[2].Hooks) > 0
}

// checkHooks refuses invalid hooks.
func checkHooks(h *specs.Hooks) error {
	for _, s := range HookKinds(h) {
		for i, k := range s.Hooks {
			switch {
			case !path.IsAbs(k.Path):
				return fmt.Errorf("hooks.%s[%d].path: %q is not absolute: %w", s.Name, i, k.Path, errdefs.ErrInvalidArgument)
			case k.Timeout != nil && *k.Timeout <= 0:
				return fmt.Errorf("hooks.%s[%d].timeout: %d is not above zero: %w", s.Name, i, *k.Timeout, errdefs.ErrInvalidArgument)
			case slices.ContainsFunc(append(append([]string{k.Path}, k.Args...), k.Env...), func(s string) bool { return strings.ContainsRune(s, 0) }):
				return fmt.Errorf("hooks.%s[%d]: holds a NUL: %w", s.Name, i, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// stop parks the child in the middle of its plan; Advance lets it continue.
func (c *compiler) stop(why string) {
	c.plan.Add("say that we wait for "+why, unix.SYS_WRITE, c.in.ownFD(fdError), plan.P(c.plan.Words(plan.StepParked)), plan.V(8)).Result(8)
	c.plan.Add("wait for "+why, unix.SYS_READ, c.in.ownFD(fdPark), plan.P(c.plan.Words(0)), plan.V(1)).Result(1)
}

// Hook compiles a createContainer or startContainer hook, which runs in a container's namespaces. The plan does not park,
// and its target is the container's main process. in.Process is the container's; a createContainer hook does not need it.
func Hook(kind string, k specs.Hook, in ExecInput) ([]byte, error) {
	if kind == "createContainer" {
		return createHook(k, in.Spec, in.Cgroup, in.Host)
	}
	p := *in.Process
	p.Args, p.Env, p.Terminal, p.ExecCPUAffinity = HookArgs(k), k.Env, false, nil
	in.Process = &p
	out, err := execFile(in, false, k.Path)
	return out.Plan, err
}

// createHook returns the plan of a createContainer hook. It runs as root in the
// container's namespaces while their root is still the host's, so its path means the
// same as for the agent.
func createHook(h specs.Hook, spec *specs.Spec, cgroup Cgroup, host Host) ([]byte, error) {
	s := *spec
	s.Process = &specs.Process{Args: HookArgs(h), Env: h.Env, Cwd: "/"}
	c := &compiler{draft: draft{in: Input{Spec: &s, Cgroup: cgroup, Host: host}, next: fdFirst}}
	c.plan.Clone(0, cgroup.Unified)
	target := c.placeStreams(true)
	c.joinCgroups(cgroup.Dirs)
	c.plan.Add("setsid", unix.SYS_SETSID)
	c.joinTarget(target, 0)
	c.plan.Add("exec "+h.Path, unix.SYS_EXECVE, plan.P(c.plan.String(h.Path)), plan.P(c.plan.Strings(s.Process.Args)), plan.P(c.plan.Strings(h.Env)))
	out, err := c.finish()
	return out.Plan, err
}

// HookArgs returns the arguments of a hook's program; a hook without arguments gets its path as the first one.
func HookArgs(h specs.Hook) []string {
	if len(h.Args) == 0 {
		return []string{h.Path}
	}
	return h.Args
}

// InnerPid returns the pid that a process has in its own pid namespace, as hooks in the container read it.
func InnerPid(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return strconv.Atoi(f[len(f)-1])
		}
	}
	return pid, nil
}
