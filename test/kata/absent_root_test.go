package kata

import (
	"strings"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAbsentFieldsOfASpec tries the rows of docs/guide/kata-fields.md that a runtime on a kernel decides: each
// change leaves a field of a container's spec out, and the container prints out or is refused.
func TestAbsentFieldsOfASpec(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		const refused = "refused"
		syscall := func(s *katav1.LinuxSyscall) func(*katav1.Spec) {
			return func(spec *katav1.Spec) {
				spec.Linux.Seccomp = &katav1.LinuxSeccomp{DefaultAction: "SCMP_ACT_ALLOW", Syscalls: []*katav1.LinuxSyscall{s}}
			}
		}
		for _, c := range []struct {
			field, script string
			change        func(*katav1.Spec)
			want          string
		}{
			{"nothing", "echo ok", func(*katav1.Spec) {}, "ok"},
			{"Spec.Linux", "test ! -e /usr/share/dpkg && test -e /bin/sh && echo ok", func(s *katav1.Spec) { s.Linux = nil }, "ok"},
			{"Linux.Namespaces", "test ! -e /usr/share/dpkg && test -e /bin/sh && echo ok", func(s *katav1.Spec) { s.Linux.Namespaces = nil }, "ok"},
			{"LinuxNamespace.Type", "test ! -e /usr/share/dpkg && test -e /bin/sh && echo ok", func(s *katav1.Spec) { s.Linux.Namespaces = append(s.Linux.Namespaces, &katav1.LinuxNamespace{}) }, "ok"},
			{"LinuxDevice.Path", "echo ok", func(s *katav1.Spec) { s.Linux.Devices = []*katav1.LinuxDevice{{Type: "c", Major: 1, Minor: 3}} }, refused},
			{"LinuxDevice.Type", "echo ok", func(s *katav1.Spec) { s.Linux.Devices = []*katav1.LinuxDevice{{Path: "/dev/x", Major: 1, Minor: 3}} }, refused},
			{"LinuxDevice.FileMode", "stat -c %a /dev/full", func(s *katav1.Spec) {
				s.Linux.Devices = []*katav1.LinuxDevice{{Path: "/dev/full", Type: "c", Major: 1, Minor: 7}}
			}, "666"},
			{"Mount.destination", "echo ok", func(s *katav1.Spec) { s.Mounts = append(s.Mounts, &katav1.Mount{Type: "tmpfs", Source: "tmpfs"}) }, refused},
			{"Mount.type", "test -e /x/bin && echo ok", func(s *katav1.Spec) {
				s.Mounts = append(s.Mounts, &katav1.Mount{Destination: "/x", Source: a.root, Options: []string{"rbind"}})
			}, "ok"},
			{"Mount.type of no bind mount", "echo ok", func(s *katav1.Spec) { s.Mounts = append(s.Mounts, &katav1.Mount{Destination: "/x", Source: "tmpfs"}) }, refused},
			{"Mount.source", "echo ok", func(s *katav1.Spec) { s.Mounts = append(s.Mounts, &katav1.Mount{Destination: "/x", Type: "bind"}) }, refused},
			{"Mount.options", "test -w /x && echo ok", func(s *katav1.Spec) {
				s.Mounts = append(s.Mounts, &katav1.Mount{Destination: "/x", Type: "tmpfs", Source: "tmpfs"})
			}, "ok"},
			{"Hook.Path", "echo ok", func(s *katav1.Spec) { s.Hooks = &katav1.Hooks{CreateRuntime: []*katav1.Hook{{}}} }, refused},
			{"POSIXRlimit.Type", "echo ok", func(s *katav1.Spec) { s.Process.Rlimits = []*katav1.POSIXRlimit{{}} }, refused},
			{"POSIXRlimit.Hard", "ulimit -c", func(s *katav1.Spec) { s.Process.Rlimits = []*katav1.POSIXRlimit{{Type: "RLIMIT_CORE"}} }, "0"},
			{"Linux.Resources", "echo x > /dev/null && echo ok", func(s *katav1.Spec) { s.Linux.Resources = nil }, "ok"},
			{"LinuxHugepageLimit.Pagesize", "echo ok", func(s *katav1.Spec) { s.Linux.Resources.HugepageLimits = []*katav1.LinuxHugepageLimit{{}} }, "ok"},
			{"LinuxSeccomp.DefaultAction", "echo ok", func(s *katav1.Spec) { s.Linux.Seccomp = &katav1.LinuxSeccomp{} }, refused},
			{"LinuxSyscall.Action", "echo ok", syscall(&katav1.LinuxSyscall{Names: []string{"mkdir"}}), refused},
			{"LinuxSeccompArg.Op", "echo ok", syscall(&katav1.LinuxSyscall{Names: []string{"mkdir"}, Action: "SCMP_ACT_ERRNO", Args: []*katav1.LinuxSeccompArg{{}}}), refused},
			{"LinuxSyscall.errnoret", "mkdir /tmp-x 2>&1; true", syscall(&katav1.LinuxSyscall{Names: []string{"mkdir", "mkdirat"}, Action: "SCMP_ACT_ERRNO"}), "Operation not permitted"},
			{"Process.Cwd", "pwd", func(s *katav1.Spec) { s.Process.Cwd = "" }, "/"},
			{"Process.User", "id -u; id -g; id -G", func(s *katav1.Spec) { s.Process.User = nil }, "0\n0\n0"},
			{"Process.Env", "echo $HOME", func(s *katav1.Spec) { s.Process.Env = nil }, "/"},
			{"Process.Capabilities", "grep CapEff /proc/self/status", func(s *katav1.Spec) { s.Process.Capabilities = nil }, "CapEff:\t0000000000000000"},
			{"Process.OOMScoreAdj", "cat /proc/self/oom_score_adj", func(*katav1.Spec) {}, "0"},
			{"Process.NoNewPrivileges", "grep NoNewPrivs /proc/self/status", func(s *katav1.Spec) { s.Process.NoNewPrivileges = false }, "NoNewPrivs:\t0"},
			{"Linux.Seccomp", "grep Seccomp: /proc/self/status", func(*katav1.Spec) {}, "Seccomp:\t0"},
			{"Linux.MaskedPaths", "echo ok", func(s *katav1.Spec) { s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil }, "ok"},
			{"Linux.CgroupsPath", "echo ok", func(s *katav1.Spec) { s.Linux.CgroupsPath = "" }, "ok"},
			{"Spec.Hostname", "hostname", func(s *katav1.Spec) { s.Hostname = "" }, "guest"},
			{"Root.Readonly", "test -w / && echo ok", func(s *katav1.Spec) { s.Root.Readonly = false }, "ok"},
		} {
			spec := a.spec(c.script)
			c.change(spec)
			_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec})
			if (err != nil) != (c.want == refused) {
				t.Errorf("%s: %v, want %s", c.field, err, c.want)
			}
			if err != nil {
				continue
			}
			if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
				t.Errorf("%s: start: %v", c.field, err)
			} else if out := a.stdout(t, "c1", "c1"); c.want != refused && !strings.Contains(strings.TrimSpace(out), c.want) {
				t.Errorf("%s: %q, want %q; stderr %q", c.field, out, c.want, a.stderr(t, "c1", "c1"))
			}
			a.remove(t, "c1")
		}
		// An exec with a program alone.
		a.run(t, "c1", a.spec("sleep 1000"))
		if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: &katav1.Process{Args: []string{"/bin/sh", "-c", "pwd; id -u"}}}); err != nil {
			t.Errorf("exec: %v", err)
		} else if out := a.stdout(t, "c1", "e1"); out != "/\n0\n" {
			t.Errorf("exec: %q", out)
		}
		a.remove(t, "c1")
	})
}
