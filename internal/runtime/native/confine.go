package native

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// filterOf compiles a filter once: the specs of confined programs share a few.
func (r *Runtime) filterOf(s *specs.LinuxSeccomp) *seccomp.Filter {
	if s == nil {
		return nil
	}
	if f, ok := r.filters.Load(s); ok {
		return f.(*seccomp.Filter) //nolint:forcetypeassert // nothing else is stored
	}
	f, err := seccomp.Compile(s)
	if err != nil || f.Notify {
		return nil // the plan's compiler returns the error
	}
	r.filters.Store(s, &f)
	return &f
}

// addDescriptors completes the input of a container with descriptors for its program, and returns these.
func addDescriptors(in *compile.Input, c core.RuntimeCreate, landlock int) (files []*os.File, err error) {
	all := slices.Clone(c.Given)
	if c.Confine != nil {
		if c.Confine.Spec == nil || c.Confine.Program == nil {
			return nil, fmt.Errorf("confinement: no spec or no program: %w", errdefs.ErrInvalidArgument)
		}
		in.Confine = &compile.Confine{Landlock: landlock}
		all = append(all, core.Given{File: c.Confine.Program, Access: core.AccessRead | core.AccessExecute})
	}
	if len(all) > core.MaxGiven {
		return nil, fmt.Errorf("the program is given %d descriptors, at most %d are possible: %w", len(all), core.MaxGiven, errdefs.ErrInvalidArgument)
	}
	in.Preserve = len(all)
	for _, g := range all {
		access, dir := core.Access(0), false
		if g.File == nil {
			if c.IO.TTY {
				return nil, fmt.Errorf("descriptors of the program: a container with a terminal has no log: %w", errdefs.ErrInvalidArgument)
			}
			slot := plan.Slot(plan.SlotStdout)
			if g.Input {
				slot = plan.SlotStdin
			}
			in.Given = append(in.Given, slot)
		} else {
			in.Given = append(in.Given, plan.Slot(plan.SlotGiven+len(files)))
			files = append(files, g.File)
			st, err := g.File.Stat()
			if err != nil {
				return nil, fmt.Errorf("descriptors of the program: %w", err)
			}
			if dir = st.IsDir(); dir || st.Mode().IsRegular() { // pipes and sockets are beneath nothing
				access = g.Access
			}
		}
		if in.Confine != nil {
			in.Confine.Access, in.Confine.Dirs = append(in.Confine.Access, access), append(in.Confine.Dirs, dir)
		}
	}
	return files, nil
}

// levelsOf returns the names of a spec's levels of Landlock. The plan's compiler has checked them.
func levelsOf(s *specs.Spec) []string {
	l, err := ocispec.LevelsOf(s)
	if err != nil {
		return nil
	}
	return l.Names()
}

// confinement reads back the confinement of a process that waits for its start. If the process is
// gone, it returns the plan's confinement, because a plan ends at the first refusal of the kernel.
func confinement(pid int, took *compile.Confine) core.Confinement {
	out := core.Confinement{Landlock: took.Landlock, Left: compile.Left(took.Landlock), Seccomp: true, NoNewPrivileges: true, NoCapabilities: true}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch key {
		case "NoNewPrivs":
			out.NoNewPrivileges = value == "1"
		case "Seccomp":
			out.Seccomp = value == "2"
		case "CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb":
			out.NoCapabilities = out.NoCapabilities && strings.Trim(value, "0") == ""
		}
	}
	return out
}
