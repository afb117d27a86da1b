package node

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

func newDebugPlan(a *base.App) *cobra.Command {
	var showEnv bool
	cmd := &cobra.Command{
		Use:   "plan [flags] CONTAINER|BUNDLE [CONTAINER|BUNDLE]",
		Short: "Print the system calls of the native runtime to start a container, or compare two",
		Long: "Print the system calls of the native runtime to start a container, or the differences between two containers.\n" +
			"A bundle is a directory with a config.json, or such a file, and needs no agent. Nothing is executed.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var heads, plans [][]string
			for _, arg := range args {
				in, hide, err := planInput(a, cmd, arg)
				if err != nil {
					return err
				}
				head, lines, err := planLines(in, hide && !showEnv)
				if err != nil {
					return fmt.Errorf("plan of %s: %w", arg, err)
				}
				if hide && len(args) > 1 { // this value differs between any two containers
					for _, part := range [][]string{head, lines} {
						for i, l := range part {
							part[i] = strings.ReplaceAll(l, in.ID, "ID")
						}
					}
				}
				heads, plans = append(heads, head), append(plans, lines)
			}
			if len(plans) == 1 {
				return a.Print("%s\n", strings.Join(append(heads[0], numbered(plans[0])...), "\n"))
			}
			return writeDiff(a.Stdout, append(heads[0], plans[0]...), append(heads[1], plans[1]...))
		},
	}
	cmd.Flags().BoolVar(&showEnv, "show-env", false, "show the values of a container's environment variables")
	return cmd
}

// planInput returns the input of the compiler: a bundle on this machine, or a container of the
// agent. hide says that the environment of a container must not be shown.
func planInput(a *base.App, cmd *cobra.Command, arg string) (in compile.Input, hide bool, err error) {
	file := arg
	if st, err := os.Stat(arg); err == nil && st.IsDir() {
		file = filepath.Join(arg, "config.json")
	}
	if b, err := os.ReadFile(file); err == nil {
		bundle, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			return in, false, err
		}
		var spec specs.Spec
		if err := json.Unmarshal(b, &spec); err != nil {
			return in, false, fmt.Errorf("%s: %w: %w", file, err, errdefs.ErrInvalidArgument)
		}
		in, err = inputOf(filepath.Base(bundle), bundle, &spec)
		return in, false, err
	}
	err = a.Call(func(c *base.Client) error {
		resp, err := c.Containers.Inspect(cmd.Context(), &longshorev1.InspectRequest{Name: arg, ShowEnv: true})
		if err != nil {
			return err
		}
		var ct struct {
			ID     string      `json:"id"`
			Bundle string      `json:"bundle"`
			Spec   *specs.Spec `json:"spec"`
		}
		if err := json.Unmarshal(resp.GetJson(), &ct); err != nil {
			return fmt.Errorf("inspect %s: %w", arg, err)
		}
		if ct.Spec == nil {
			return fmt.Errorf("%s: it has no spec: %w", arg, errdefs.ErrFailedPrecondition)
		}
		in, err = inputOf(ct.ID, ct.Bundle, ct.Spec)
		return err
	})
	return in, true, err
}

func inputOf(id, bundle string, spec *specs.Spec) (compile.Input, error) {
	host, err := compile.ReadHost()
	if err != nil {
		return compile.Input{}, err
	}
	in := compile.Input{ID: id, Bundle: bundle, Spec: spec, Host: host, Park: true}
	if spec.Root != nil {
		if in.Root = spec.Root.Path; !filepath.IsAbs(in.Root) {
			in.Root = filepath.Join(bundle, in.Root)
		}
	}
	if spec.Linux == nil || !filepath.IsAbs(spec.Linux.CgroupsPath) {
		return in, nil // systemd's names become paths only when it makes the cgroups
	}
	tree, err := cgroup.New(cgroup.Options{})
	if err != nil {
		return in, err
	}
	ref := core.CgroupRef{Path: spec.Linux.CgroupsPath}
	in.Cgroup.Dirs, in.Cgroup.Unified, in.Cgroup.Own = cgroup.Delegating{Tree: tree}.Dirs(ref)
	in.Cgroup.Delegated = ref.Delegated()
	return in, nil
}

// planLines compiles and prints a plan. With hideEnv it compiles an environment without values,
// because no search of the output finds each of them: a value may be printed as words. PATH keeps
// its value, which the paths of the program show anyway.
func planLines(in compile.Input, hideEnv bool) (head, lines []string, err error) {
	if hideEnv && in.Spec.Process != nil {
		spec, process := *in.Spec, *in.Spec.Process
		process.Env = slices.Clone(process.Env)
		for i, e := range process.Env {
			if name, _, _ := strings.Cut(e, "="); name != "PATH" {
				process.Env[i] = name + "=<hidden>"
			}
		}
		spec.Process = &process
		in.Spec = &spec
	}
	out, err := compile.Container(in)
	if err != nil {
		return nil, nil, err
	}
	return plan.Lines(out.Plan, seccomp.CallName)
}

func numbered(lines []string) []string {
	out := make([]string, 0, len(lines))
	for i, l := range lines {
		out = append(out, fmt.Sprintf("%3d %s", i, l))
	}
	return out
}

// writeDiff prints the lines that only one of two lists has, in order, each group after the
// common line before it. It prints nothing when the lists are equal.
func writeDiff(w io.Writer, a, b []string) error {
	// The longest common subsequence, from the end.
	long := make([][]int32, len(a)+1)
	for i := range long {
		long[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				long[i][j] = long[i+1][j+1] + 1
			} else {
				long[i][j] = max(long[i+1][j], long[i][j+1])
			}
		}
	}
	same, shown := "", true
	line := func(mark, text string) error {
		if !shown {
			shown = true
			if _, err := fmt.Fprintln(w, "  "+same); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(w, mark+" "+text)
		return err
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		var err error
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			same, shown = a[i], false
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && long[i+1][j] >= long[i][j+1]:
			err = line("-", a[i])
			i++
		default:
			err = line("+", b[j])
			j++
		}
		if err != nil {
			return err
		}
	}
	return nil
}
