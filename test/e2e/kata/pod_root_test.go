package kata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// pod is a sandbox with its containers.
type pod struct {
	r   *rig
	id  string
	cfg *runtimeapi.PodSandboxConfig
}

func (r *rig) pod(t *testing.T, name string, pid runtimeapi.NamespaceMode, change ...func(*runtimeapi.PodSandboxConfig)) *pod {
	t.Helper()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "test", Uid: "uid-" + name}, Hostname: name, LogDirectory: t.TempDir(),
		DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"example.org"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: pid},
		}},
	}
	for _, f := range change {
		f(cfg)
	}
	made, err := r.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatalf("RunPodSandbox: %v", err)
	}
	return &pod{r: r, id: made.GetPodSandboxId(), cfg: cfg}
}

// run starts a container of a script, and returns its id.
func (p *pod) run(t *testing.T, name, script string, change ...func(*runtimeapi.ContainerConfig)) string {
	t.Helper()
	cfg := nodetest.ContainerConfig(name, busybox, "sh", "-c", script)
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: p.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()}
	for _, f := range change {
		f(cfg)
	}
	made, err := p.r.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.cfg})
	if err != nil {
		t.Fatalf("CreateContainer %s: %v", name, err)
	}
	if _, err := p.r.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()}); err != nil {
		t.Fatalf("StartContainer %s: %v", name, err)
	}
	return made.GetContainerId()
}

// exec runs a script in a container, which must succeed.
func (p *pod) exec(t *testing.T, id, script string) string {
	t.Helper()
	r, err := p.r.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Timeout: 60})
	if err != nil || r.GetExitCode() != 0 {
		t.Fatalf("ExecSync %s: %v, %d: %s%s", script, err, r.GetExitCode(), r.GetStdout(), r.GetStderr())
	}
	return string(r.GetStdout())
}

// ended waits for a container's end.
func (p *pod) ended(t *testing.T, id string) (status *runtimeapi.ContainerStatus) {
	t.Helper()
	nodetest.Eventually(t, "the container ends", func() bool {
		r, err := p.r.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			t.Fatalf("ContainerStatus: %v", err)
		}
		status = r.GetStatus()
		return status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return status
}

// end stops and removes the pod.
func (p *pod) end(t *testing.T) {
	t.Helper()
	if _, err := p.r.CRI.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Errorf("StopPodSandbox: %v", err)
	}
	if _, err := p.r.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Errorf("RemovePodSandbox: %v", err)
	}
	m := p.r.ends(t, p.id)
	<-m.done
	if m.err != nil {
		t.Errorf("the agent ended with %v", m.err)
	}
}

// TestPodsOfTheCRI: pods of containerd's CRI plugin.
func TestPodsOfTheCRI(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		t.Run("a pod", func(t *testing.T) { onePod(t, r) })
		t.Run("shared processes", func(t *testing.T) {
			p := r.pod(t, "pids", runtimeapi.NamespaceMode_POD)
			one := p.run(t, "one", "sleep 1111")
			two := p.run(t, "two", "sleep 2222", func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
			})
			if got := p.exec(t, two, "grep Seccomp: /proc/1/status /proc/self/status"); strings.Count(got, "\t2") != 1 {
				t.Errorf("seccomp of the first process and of an exec: %s", got)
			}
			for _, id := range []string{one, two} {
				if got := p.exec(t, id, "ps"); !strings.Contains(got, "sleep 1111") || !strings.Contains(got, "sleep 2222") || !strings.Contains(got, "1000000") {
					t.Errorf("ps shows\n%s", got)
				}
			}
			p.end(t)
		})
	})
}

func onePod(t *testing.T, r *rig) {
	t.Helper()
	// The shim knows the volumes of a pod by their directories' names.
	host, volume := t.TempDir(), filepath.Join(t.TempDir(), "kubernetes.io~empty-dir/scratch")
	if err := os.MkdirAll(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, host+"/file", "from the host\n")
	if err := os.Symlink("file", host+"/link"); err != nil {
		t.Fatal(err)
	}
	mounts := func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{
			{HostPath: host, ContainerPath: "/host", Readonly: true},
			{HostPath: volume, ContainerPath: "/scratch"},
			{HostPath: memory, ContainerPath: "/memory"},
		}
	}
	p := r.pod(t, "pod", runtimeapi.NamespaceMode_CONTAINER)
	one := p.run(t, "one", "echo x >/scratch/from-one; echo y >/memory/from-one; hostname; cat /etc/resolv.conf; sleep 1111", mounts)
	log := filepath.Join(p.cfg.GetLogDirectory(), "one.log")
	nodetest.Eventually(t, "the first container has written its files", func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), "nameserver")
	})
	two := p.run(t, "two", "sleep 2222", mounts)
	t.Run("the machine", func(t *testing.T) {
		host, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err != nil {
			t.Fatal(err)
		}
		kernel := p.exec(t, one, "cat /proc/sys/kernel/osrelease")
		root := p.exec(t, one, "grep ' / ' /proc/mounts")
		if other := kernel != string(host); other != r.virtual || strings.Contains(root, " virtiofs ") != r.virtual {
			t.Errorf("the kernel is %q, the host's %q, the root's mount %q", kernel, host, root)
		}
	})
	t.Run("processes of its own", func(t *testing.T) {
		if got := p.exec(t, two, "ps"); strings.Contains(got, "1111") || !strings.Contains(got, "2222") {
			t.Errorf("ps shows\n%s", got)
		}
	})
	t.Run("files", func(t *testing.T) {
		if got := p.exec(t, one, "hostname"); got != "pod\n" {
			t.Errorf("its name is %q", got)
		}
		if got := p.exec(t, one, "cat /etc/resolv.conf"); !strings.Contains(got, "nameserver 192.0.2.53") || !strings.Contains(got, "search example.org") {
			t.Errorf("its resolv.conf is %q", got)
		}
		want, err := os.ReadFile("/etc/hosts")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.exec(t, one, "cat /etc/hosts"); got != string(want) {
			t.Errorf("its hosts file is %q, want %q", got, want)
		}
		copied := map[string]bool{}
		for _, c := range r.machine(p.id).named("CopyFile") {
			name := filepath.Base(c.req.(*katav1.CopyFileRequest).GetPath())
			copied[name[strings.LastIndex(name, "-")+1:]] = true
		}
		for _, name := range []string{"resolv.conf", "hosts", "hostname", "file", "link"} {
			if !copied[name] {
				t.Errorf("no CopyFile of %s: %v", name, copied)
			}
		}
	})
	t.Run("volumes", func(t *testing.T) {
		if got := p.exec(t, one, "cat /host/file /host/link; echo x 2>/dev/null >/host/file || echo refused"); got != "from the host\nfrom the host\nrefused\n" {
			t.Errorf("the host's directory has %q", got)
		}
		if got := p.exec(t, two, "cat /scratch/from-one /memory/from-one; df /memory | grep -c tmpfs"); got != "x\ny\n1\n" {
			t.Errorf("the other container's file has %q", got)
		}
	})
	t.Run("exec with a code", func(t *testing.T) {
		got, err := r.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: one, Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 9"}, Timeout: 60})
		if err != nil || got.GetExitCode() != 9 || string(got.GetStdout()) != "out\n" || string(got.GetStderr()) != "err\n" {
			t.Errorf("ExecSync: %v, %v", got, err)
		}
	})
	t.Run("update", func(t *testing.T) {
		limit := int64(96 << 20)
		if _, err := r.CRI.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: one, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: limit, CpuShares: 512}}); err != nil {
			t.Fatalf("UpdateContainerResources: %v", err)
		}
		r.ctr(t, "", "-n", "k8s.io", "task", "metrics", one)
		stats := r.machine(p.id).named("StatsContainer")
		if got := stats[len(stats)-1].answer.(*katav1.StatsContainerResponse).GetCgroupStats().GetMemoryStats().GetUsage().GetLimit(); got != uint64(limit) {
			t.Errorf("the limit is %d, want %d", got, limit)
		}
		if got := p.exec(t, one, "head -c 5 /dev/zero | wc -c"); strings.TrimSpace(got) != "5" { // the update denies all devices in words
			t.Errorf("of a device %q bytes are read", got)
		}
	})
	t.Run("stats", func(t *testing.T) {
		got, err := r.CRI.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: one})
		if err != nil || got.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || got.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 {
			t.Errorf("ContainerStats: %v, %v", got, err)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		id := p.run(t, "hog", "dd if=/dev/zero of=/dev/null bs=200M count=1; exit 1", func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
		})
		_ = p.ended(t, id)
		nodetest.Eventually(t, "the kill is told", func() bool { return r.machine(p.id).has("GetOOMEvent") })
		nodetest.Eventually(t, "the reason is OOMKilled", func() bool { return p.ended(t, id).GetReason() == "OOMKilled" })
	})
	t.Run("the log", func(t *testing.T) {
		b, err := os.ReadFile(log)
		if err != nil || !strings.Contains(string(b), " stdout F pod\n") {
			t.Errorf("the log is %q, %v", b, err)
		}
	})
	t.Run("a stop", func(t *testing.T) {
		if _, err := r.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: one, Timeout: 30}); err != nil {
			t.Fatalf("StopContainer: %v", err)
		}
		if got := p.ended(t, one).GetExitCode(); got != 137 { // its first process does not heed SIGTERM
			t.Errorf("ended with %d", got)
		}
		if _, err := r.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: one}); err != nil {
			t.Errorf("RemoveContainer: %v", err)
		}
	})
	p.end(t)
}
