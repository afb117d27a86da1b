package native

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// FindProgram says, before anything runs, that a spec's program is not in the
// root filesystem (NotFound) or cannot be executed (PermissionDenied). A program
// that a mount may bring is not looked for.
func FindProgram(root string, s *specs.Spec) error { return findProgram(root, s) }

// DeviceRules are the rules that hold for a container: the spec's own, then
// those of the default devices (runtime-spec, Default Devices); none when the
// spec has none.
func DeviceRules(res *specs.LinuxResources) []specs.LinuxDeviceCgroup {
	if res == nil || len(res.Devices) == 0 {
		return nil
	}
	return append(slices.Clone(res.Devices), alwaysAllowed()...)
}

// HookPlan is the plan of a hook that runs in a container's namespaces,
// createContainer's or startContainer's: it does not park, and its target is the
// container's main process. in.Process is the container's.
func HookPlan(stage string, k specs.Hook, in ExecInput) ([]byte, error) {
	if stage == "createContainer" {
		return compileCreateHook(k, in.Spec, in.Cgroup, in.Host)
	}
	p := *in.Process
	p.Args, p.Env, p.Terminal, p.ExecCPUAffinity = hookArgs(k), k.Env, false, nil
	in.Process = &p
	out, err := compileExec(in, false, k.Path)
	return out.Plan, err
}

// InnerPid is the pid that a process has in its own pid namespace.
func InnerPid(pid int) (int, error) { return innerPid(pid) }
