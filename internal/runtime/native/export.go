package native

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// FindProgram reports, before anything runs, that a spec's program is not in the root
// filesystem (NotFound) or cannot be executed (PermissionDenied). It reports nothing for
// a program that may be on a mount.
func FindProgram(root string, s *specs.Spec) error { return findProgram(root, s) }

// DeviceRules returns the rules that hold for a container: the spec's own, then those of
// the default devices (runtime-spec, Default Devices). It returns none if the spec has
// none.
func DeviceRules(res *specs.LinuxResources) []specs.LinuxDeviceCgroup {
	if res == nil || len(res.Devices) == 0 {
		return nil
	}
	return append(slices.Clone(res.Devices), alwaysAllowed()...)
}

// HookPlan returns the plan of a createContainer or startContainer hook, which runs in a
// container's namespaces. The plan does not park, and its target is the container's main
// process. in.Process is the container's.
func HookPlan(kind string, k specs.Hook, in ExecInput) ([]byte, error) {
	if kind == "createContainer" {
		return compileCreateHook(k, in.Spec, in.Cgroup, in.Host)
	}
	p := *in.Process
	p.Args, p.Env, p.Terminal, p.ExecCPUAffinity = hookArgs(k), k.Env, false, nil
	in.Process = &p
	out, err := compileExec(in, false, k.Path)
	return out.Plan, err
}

// InnerPid returns the pid that a process has in its own pid namespace.
func InnerPid(pid int) (int, error) { return innerPid(pid) }
