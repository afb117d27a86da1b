package kata

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// security changes the security context of a container.
func security(f func(*runtimeapi.LinuxContainerSecurityContext)) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) { f(c.Linux.SecurityContext) }
}

func mounted(list ...*runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) { c.Mounts = append(c.Mounts, list...) }
}

// kubernetesCases are the behaviours that Kata's own tests want of a pod on Kubernetes, as calls of the CRI. The names are
// those of Kata's test files, without "k8s-". Those that test kubelet, a registry, a network plugin or a kind of
// hypervisor are not here.
var kubernetesCases = []struct {
	name  string
	check func(*testing.T, *rig)
}{
	{"caps", func(t *testing.T, r *rig) {
		p := r.pod(t, "caps", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		none := p.run(t, "none", "grep CapEff: /proc/self/status; sleep 1111", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"CHOWN"}}
		}))
		p.says(t, "none", "CapEff:\t0000000000000001")
		if got := p.exec(t, none, "grep CapEff: /proc/self/status"); got != "CapEff:\t0000000000000001\n" {
			t.Errorf("an exec has %q", got)
		}
	}},
	{"env", func(t *testing.T, r *rig) {
		p := r.pod(t, "env", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "env", "sleep 1111", func(c *runtimeapi.ContainerConfig) {
			c.Envs = []*runtimeapi.KeyValue{{Key: "POD", Value: []byte("env")}, {Key: "EMPTY"}, {Key: "TWO", Value: []byte("a=b c")}}
		})
		if got := p.exec(t, id, "echo $POD; echo \"<$EMPTY>\"; echo \"$TWO\""); got != "env\n<>\na=b c\n" {
			t.Errorf("%q", got)
		}
	}},
	{"exec", func(t *testing.T, r *rig) {
		p := r.pod(t, "exec", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		one := p.run(t, "one", "sleep 1111", func(c *runtimeapi.ContainerConfig) {
			c.Envs = []*runtimeapi.KeyValue{{Key: "NAME", Value: []byte("one")}}
		})
		two := p.run(t, "two", "sleep 1111", func(c *runtimeapi.ContainerConfig) {
			c.Envs = []*runtimeapi.KeyValue{{Key: "NAME", Value: []byte("two")}}
		})
		if got := p.exec(t, one, "echo $NAME; echo abc >/tmp-abc; cat /tmp-abc") + p.exec(t, two, "echo $NAME; ls /tmp-abc 2>/dev/null; true"); got != "one\nabc\ntwo\n" {
			t.Errorf("%q", got)
		}
		got, err := r.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: two, Cmd: []string{"sh", "-c", "exit 123"}, Timeout: 60})
		if err != nil || got.GetExitCode() != 123 {
			t.Errorf("exit 123: %v, %v", got, err)
		}
	}},
	{"security-context", func(t *testing.T, r *rig) {
		p := r.pod(t, "user", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "user", "grep NoNewPrivs /proc/self/status; sleep 1111", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 1001}, &runtimeapi.Int64Value{Value: 3001}
			s.SupplementalGroups, s.ReadonlyRootfs, s.NoNewPrivs = []int64{2001}, true, true
		}))
		if got := p.exec(t, id, "id -u; id -g; id -G; touch /x 2>/dev/null || echo refused"); got != "1001\n3001\n3001 2001\nrefused\n" {
			t.Errorf("%q", got)
		}
		p.says(t, "user", "NoNewPrivs:\t1") // of an exec the shim does not say it
	}},
	{"privileged", func(t *testing.T, r *rig) {
		p := r.pod(t, "privileged", runtimeapi.NamespaceMode_CONTAINER, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		defer p.end(t)
		id := p.run(t, "privileged", "sleep 1111", security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }))
		if got := p.exec(t, id, "grep Seccomp: /proc/self/status; mkdir /m && mount -t tmpfs tmpfs /m && echo mounted"); got != "Seccomp:\t0\nmounted\n" {
			t.Errorf("%q", got)
		}
	}},
	{"seccomp", func(t *testing.T, r *rig) {
		p := r.pod(t, "seccomp", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		p.run(t, "seccomp", "grep Seccomp: /proc/self/status", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		}))
		p.says(t, "seccomp", "Seccomp:\t2")
	}},
	{"sysctls", func(t *testing.T, r *rig) {
		p := r.pod(t, "sysctls", runtimeapi.NamespaceMode_CONTAINER, func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1"}
		})
		defer p.end(t)
		id := p.run(t, "sysctls", "sleep 1111")
		if got := p.exec(t, id, "cat /proc/sys/kernel/shm_rmid_forced"); got != "1\n" {
			t.Errorf("%q", got)
		}
	}},
	{"pid-ns", func(t *testing.T, r *rig) {
		p := r.pod(t, "shared", runtimeapi.NamespaceMode_POD)
		defer p.end(t)
		one, two := p.run(t, "one", "sleep 1111"), p.run(t, "two", "sleep 2222")
		if a, b := p.exec(t, one, "cat /proc/1/comm"), p.exec(t, two, "cat /proc/1/comm"); a != b || a == "sh\n" {
			t.Errorf("the first process is %q and %q", a, b)
		}
	}},
	{"kill-all-process-in-container", func(t *testing.T, r *rig) {
		p := r.pod(t, "killed", runtimeapi.NamespaceMode_POD)
		defer p.end(t)
		first := p.run(t, "first", "sleep 3333 & exit 0") // leaves a child behind
		_ = p.ended(t, first)
		two := p.run(t, "two", "sleep 2222")
		if got := p.exec(t, two, "ps"); strings.Contains(got, "3333") || !strings.Contains(got, "2222") {
			t.Errorf("after the end of the first container there are\n%s", got)
		}
	}},
	{"shared-volume", func(t *testing.T, r *rig) {
		volume := scratch(t)
		p := r.pod(t, "volume", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		at := mounted(&runtimeapi.Mount{HostPath: volume, ContainerPath: "/volume"})
		_ = p.ended(t, p.run(t, "init", "echo 1 >/volume/init", at))
		one := p.run(t, "one", "echo 2 >/volume/one; sleep 1111", at)
		two := p.run(t, "two", "while ! test -s /volume/one; do sleep 0.1; done; echo hello >/volume/two; sleep 1111", at)
		nodetest.Eventually(t, "the second container has written", func() bool {
			got, err := r.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: one, Cmd: []string{"cat", "/volume/two"}, Timeout: 60})
			return err == nil && string(got.GetStdout()) == "hello\n"
		})
		if got := p.exec(t, two, "cat /volume/init /volume/one"); got != "1\n2\n" {
			t.Errorf("%q", got)
		}
	}},
	{"uds-shared-volume", func(t *testing.T, r *rig) {
		p := r.pod(t, "socket", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		at := mounted(&runtimeapi.Mount{HostPath: memory, ContainerPath: "/sockets"})
		one := p.run(t, "one", "sleep 1111", at)
		two := p.run(t, "two", "sleep 1111", at)
		_ = p.exec(t, one, "rm -f /sockets/p; mkfifo /sockets/p; (echo through >/sockets/p) >/dev/null 2>&1 &")
		if got := p.exec(t, two, "cat /sockets/p"); got != "through\n" {
			t.Errorf("%q", got)
		}
	}},
	{"empty-dirs", func(t *testing.T, r *rig) {
		p := r.pod(t, "empty", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "empty", "sleep 1111", mounted(&runtimeapi.Mount{HostPath: memory, ContainerPath: "/cache"}))
		if got := p.exec(t, id, "grep -c ' /cache tmpfs ' /proc/mounts; dd if=/dev/zero of=/cache/f bs=1M count=20 2>/dev/null; echo $?; wc -c </cache/f"); got != "1\n0\n20971520\n" {
			t.Errorf("%q", got)
		}
	}},
	{"configmap, credentials-secrets, nested-configmap-secret, projected-volume", func(t *testing.T, r *rig) {
		host := filepath.Join(t.TempDir(), "kubernetes.io~projected/all")
		if err := os.MkdirAll(host+"/..data_1/deep", 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, host+"/..data_1/name", "value\n")
		write(t, host+"/..data_1/deep/name", "secret\n")
		for name, to := range map[string]string{"..data": "..data_1", "name": "..data/name", "deep": "..data/deep"} {
			if err := os.Symlink(to, filepath.Join(host, name)); err != nil {
				t.Fatal(err)
			}
		}
		p := r.pod(t, "projected", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "projected", "sleep 1111", mounted(&runtimeapi.Mount{HostPath: host, ContainerPath: "/config", Readonly: true}, &runtimeapi.Mount{HostPath: host + "/name", ContainerPath: "/etc/name", Readonly: true}))
		if got := p.exec(t, id, "cat /config/name /config/deep/name /etc/name; echo x 2>/dev/null >/config/name || echo refused"); got != "value\nsecret\nvalue\nrefused\n" {
			t.Errorf("%q", got)
		}
	}},
	{"optional-empty-configmap, optional-empty-secret", func(t *testing.T, r *rig) {
		host := filepath.Join(t.TempDir(), "kubernetes.io~configmap/none")
		if err := os.MkdirAll(host, 0o755); err != nil {
			t.Fatal(err)
		}
		p := r.pod(t, "none", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "none", "sleep 1111", mounted(&runtimeapi.Mount{HostPath: host, ContainerPath: "/empty", Readonly: true}))
		if got := p.exec(t, id, "test -d /empty && ls -A /empty | wc -l"); got != "0\n" {
			t.Errorf("%q", got)
		}
	}},
	{"file-volume, hostpath-volume", func(t *testing.T, r *rig) {
		dir := t.TempDir()
		write(t, dir+"/file", "of the host\n")
		p := r.pod(t, "host", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "host", "sleep 1111", mounted(&runtimeapi.Mount{HostPath: dir + "/file", ContainerPath: "/here/file"}, &runtimeapi.Mount{HostPath: dir, ContainerPath: "/dir"}))
		if got := p.exec(t, id, "cat /here/file /dir/file"); got != "of the host\nof the host\n" {
			t.Errorf("%q", got)
		}
	}},
	{"termination-log, graceful-termination", func(t *testing.T, r *rig) {
		log := filepath.Join(t.TempDir(), "termination-log")
		write(t, log, "")
		if err := os.Chmod(log, 0o666); err != nil {
			t.Fatal(err)
		}
		p := r.pod(t, "graceful", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "graceful", "trap 'echo received SIGTERM' TERM; echo start; while true; do sleep 0.1; done", mounted(&runtimeapi.Mount{HostPath: log, ContainerPath: "/dev/termination-log"}))
		p.says(t, "graceful", "start")
		_ = p.exec(t, id, "echo why >/dev/termination-log")
		if _, err := r.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 2}); err != nil {
			t.Fatal(err)
		}
		if got := p.ended(t, id).GetExitCode(); got != 128+int32(syscall.SIGKILL) {
			t.Errorf("the code is %d", got)
		}
		if b, err := os.ReadFile(filepath.Join(p.cfg.GetLogDirectory(), "graceful.log")); err != nil || strings.Count(string(b), "received SIGTERM") != 1 {
			t.Errorf("%v: %q", err, b)
		}
	}},
	{"job, cron-job", func(t *testing.T, r *rig) {
		p := r.pod(t, "job", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		for name, code := range map[string]int32{"done": 0, "failed": 7} {
			s := p.ended(t, p.run(t, name, fmt.Sprintf("exit %d", code)))
			want := "Completed"
			if code != 0 {
				want = "Error"
			}
			if s.GetExitCode() != code || s.GetReason() != want {
				t.Errorf("%s: %d, %s", name, s.GetExitCode(), s.GetReason())
			}
		}
	}},
	{"liveness-probes", func(t *testing.T, r *rig) {
		p := r.pod(t, "probe", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "probe", "touch /alive; sleep 1111")
		probe := func() int32 {
			got, err := r.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"cat", "/alive"}, Timeout: 5})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetExitCode()
		}
		nodetest.Eventually(t, "the probe succeeds", func() bool { return probe() == 0 })
		_ = p.exec(t, id, "rm /alive")
		if got := probe(); got != 1 {
			t.Errorf("the probe of a file that is gone ends with %d", got)
		}
		for range 20 {
			_ = probe()
		}
	}},
	{"memory, number-cpus, limit-range, pod-quota, qos-pods", func(t *testing.T, r *rig) {
		p := r.pod(t, "limits", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "limits", "sleep 1111", func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuQuota: 50000, CpuPeriod: 100000, CpuShares: 512, OomScoreAdj: 900}
		})
		if got := p.exec(t, id, "cat /proc/1/oom_score_adj"); got != "900\n" {
			t.Errorf("oom_score_adj %q", got)
		}
		hog := p.run(t, "hog", "dd if=/dev/zero of=/dev/null bs=200M count=1; exit 1", func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
		})
		_ = p.ended(t, hog)
		if got := p.exec(t, id, "echo lives"); got != "lives\n" {
			t.Errorf("%q", got)
		}
	}},
	{"parallel, replication", func(t *testing.T, r *rig) {
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				name := fmt.Sprintf("parallel-%d", i)
				p := r.pod(t, name, runtimeapi.NamespaceMode_CONTAINER)
				id := p.run(t, name, "sleep 1111")
				if got := p.exec(t, id, "hostname"); got != name+"\n" {
					t.Errorf("%s is named %q", name, got)
				}
				p.end(t)
			})
		}
		wg.Wait()
	}},
	{"a terminal", func(t *testing.T, r *rig) {
		p := r.pod(t, "tty", runtimeapi.NamespaceMode_CONTAINER)
		defer p.end(t)
		id := p.run(t, "tty", "test -t 0 && test -t 1 && echo terminal; sleep 1111", func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true })
		p.says(t, "tty", "terminal")
		if got := p.exec(t, id, "test -t 1 || echo none"); got != "none\n" {
			t.Errorf("%q", got)
		}
	}},
}

// says waits until a container has written a line.
func (p *pod) says(t *testing.T, name, line string) {
	t.Helper()
	log := filepath.Join(p.cfg.GetLogDirectory(), name+".log")
	nodetest.Eventually(t, "the container writes "+line, func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(strings.ReplaceAll(string(b), "\r", ""), " stdout F "+line+"\n")
	})
}

// scratch makes the directory of an emptyDir volume.
func scratch(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kubernetes.io~empty-dir/scratch")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWhatKatasKubernetesTestsWant runs kubernetesCases, and says how many hold.
func TestWhatKatasKubernetesTestsWant(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		held := 0
		for _, c := range kubernetesCases {
			if t.Run(c.name, func(t *testing.T) { c.check(t, r) }) {
				held++
			}
		}
		t.Logf("%d of %d groups of Kata's Kubernetes tests hold", held, len(kubernetesCases))
	})
}
