package native_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native"
)

// ran is the output of an exec that runs to its end.
func (n *node) ran(t *testing.T, id core.ID, p *specs.Process) string {
	t.Helper()
	ref, log := core.Ref{Container: id, Process: "e"}, n.dir+"/exec.out"
	_ = os.Remove(log)
	_, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: p, IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}})
	if err != nil {
		t.Fatal(err)
	}
	for x, err := range n.keeper.Exits(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if x.Ref == ref {
			break
		}
	}
	if err := n.keeper.Forget(t.Context(), ref); err != nil {
		t.Error(err)
	}
	out, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestExecsRunOnTheirCPUs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if runtime.NumCPU() < 2 {
			t.Skip("one CPU")
		}
		n := newNode(t)
		id, err := n.held(t.Context(), t, script("sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			specs.CPUAffinity
			want []string
		}{
			// Joining a cgroup forgets it on kernels before 6.2.
			{specs.CPUAffinity{Initial: "0"}, []string{"0", fmt.Sprintf("0-%d", runtime.NumCPU()-1)}},
			{specs.CPUAffinity{Initial: "0", Final: "1"}, []string{"1"}},
			{specs.CPUAffinity{Final: "0-1"}, []string{"0-1"}},
		} {
			p := *script("grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup").Process
			p.ExecCPUAffinity = &c.CPUAffinity
			out := n.ran(t, id, &p)
			line, cgroups, _ := strings.Cut(out, "\n")
			// On v2 it sees its own cgroup as the root.
			if !slices.Contains(c.want, strings.TrimPrefix(line, "Cpus_allowed_list:\t")) || !strings.Contains(cgroups, "cpu") && cgroups != "0::/\n" {
				t.Errorf("%+v: %q", c.CPUAffinity, out)
			}
		}
	})
}

func TestAMemoryPolicyHolds(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat("/proc/self/numa_maps"); err != nil {
			t.Skip("a kernel without NUMA")
		}
		n := newNode(t)
		s := script("head -n 1 /proc/self/numa_maps | cut -d ' ' -f 2")
		s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "0", Flags: []specs.MemoryPolicyFlagType{specs.MpolFStaticNodes}}
		if out := n.output(t, s); out != "bind=static:0\n" {
			t.Errorf("%q", out)
		}
	})
}

// TestARootThatIsMoved: the steps for an initramfs work on any root, so the test runs them here.
func TestARootThatIsMoved(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		h := host(t)
		h.Initramfs = true
		var err error
		if n.runtime, err = native.New(native.Options{Dir: "/run/m", Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups, Host: h}); err != nil {
			t.Fatal(err)
		}
		s := privileged(`ls / | tr '\n' ' '; echo; ls /proc | grep -c '^[0-9]'; grep -c ' - proc ' /proc/self/mountinfo
			cd /; chroot . ls / | tr '\n' ' '; echo; touch /x 2>&1; unshare -m ls -d /host 2>&1`)
		s.Root.Readonly = true
		s.Linux.ReadonlyPaths, s.Linux.MaskedPaths = nil, nil
		if err := os.WriteFile("/run/host", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out := n.output(t, s)
		lines := strings.Split(out, "\n")
		if len(lines) < 5 || lines[0] != "bin dev etc mnt proc root sys tmp " || lines[2] != "1" || lines[3] != lines[0] || !strings.Contains(out, "Read-only file system") {
			t.Errorf("%q", out)
		}
		id, err := n.held(t.Context(), t, script("sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		if out := n.ran(t, id, script("ls / | tr '\\n' ' '; pwd").Process); out != "bin dev etc mnt proc root sys tmp /\n" {
			t.Errorf("exec: %q", out)
		}
	})
}
