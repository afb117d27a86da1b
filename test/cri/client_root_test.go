package cri

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestContainerConfig: containers are, seen from inside, as their ContainerConfig says, with
// each runtime that works here.
func TestContainerConfig(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, h := range handlers(t) {
			t.Run(h.GetName(), func(t *testing.T) {
				runtime := h.GetName()
				if runtime == "native" {
					runtime = "" // the default, which has no section
				}
				n := nodetest.Start(t, nodetest.Options{Runtime: runtime, Config: "[face.cri]\nhandlers = { nvidia = \"" + h.GetName() + "\" }\n"})
				s := &suite{n: n, image: n.Busybox(t), handler: h}
				t.Run("identity", s.identity)
				t.Run("rights", s.rights)
				t.Run("privileged", s.privileged)
				t.Run("filesystem", s.filesystem)
				t.Run("mounts", s.mounts)
				t.Run("image volumes", s.imageVolumes)
				t.Run("declared volumes", s.declaredVolumes)
				t.Run("cdi", s.cdi)
				t.Run("namespaces", s.namespaces)
				t.Run("target", s.target)
				t.Run("sandbox", s.sandbox)
				t.Run("devices", s.devices)
				t.Run("limits", s.limits)
				t.Run("oom", s.oom)
				t.Run("exec", s.exec)
				t.Run("log", s.log)
				t.Run("stop", s.stop)
				t.Run("cannot run", s.cannotRun)
				n.Check()
			})
		}
	})
}

// handlers are the runtimes that work here and run any image. A program of core.GrantHandler or of
// WebAssembly has no shell, no files and no exec; test/node has its tests.
func handlers(t *testing.T) (list []*v1.RuntimeHandler) {
	t.Helper()
	t.Run("probe", func(t *testing.T) {
		st, err := nodetest.Start(t, nodetest.Options{}).CRI.Status(t.Context(), &v1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range st.GetRuntimeHandlers() {
			if h.GetName() != "" && h.GetName() != core.GrantHandler && !slices.Contains(core.WasmHandlers(), h.GetName()) { // the default is one of the others
				list = append(list, h)
			}
		}
	})
	if len(list) == 0 {
		t.Fatal("no runtime works here")
	}
	return list
}

type suite struct {
	n       *nodetest.Node
	image   string
	handler *v1.RuntimeHandler
	pods    int
}

// pod makes a sandbox that goes with the test.
func (s *suite) pod(t *testing.T, change ...func(*v1.PodSandboxConfig)) *nodetest.Pod {
	t.Helper()
	s.pods++
	cfg := s.n.PodConfig(s.handler.GetName() + "-" + strings.ReplaceAll(t.Name(), "/", "-"))
	cfg.Hostname = "host"
	cfg.Metadata.Attempt = uint32(s.pods)
	for _, c := range change {
		c(cfg)
	}
	p := s.n.RunPod(t, cfg)
	t.Cleanup(func() {
		if _, err := s.n.CRI.RemovePodSandbox(context.Background(), &v1.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (s *suite) config(command ...string) *v1.ContainerConfig {
	if len(command) == 0 {
		command = []string{"/bin/sleep", "1000"}
	}
	return nodetest.ContainerConfig("c", s.image, command...)
}

// run starts a container in a pod of its own.
func (s *suite) run(t *testing.T, change func(*v1.ContainerConfig)) *nodetest.Container {
	t.Helper()
	cfg := s.config()
	cfg.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}}
	change(cfg)
	return s.pod(t).Run(t, cfg)
}

// sh runs a script in a container and returns its trimmed output.
func (s *suite) sh(t *testing.T, c *nodetest.Container, script string) string {
	t.Helper()
	r, err := s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", "{ " + script + "\n} 2>&1"}, Timeout: 60})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(r.GetStdout()))
}

func (s *suite) want(t *testing.T, c *nodetest.Container, script, want string) {
	t.Helper()
	if got := s.sh(t, c, script); got != want {
		t.Errorf("%s: %q, want %q", script, got, want)
	}
}

func (s *suite) wantHas(t *testing.T, c *nodetest.Container, script, want string) {
	t.Helper()
	if got := s.sh(t, c, script); !strings.Contains(got, want) {
		t.Errorf("%s: %q, which lacks %q", script, got, want)
	}
}

func field(name string) string {
	return "grep ^" + name + ": /proc/self/status | tr -d '\\t' | head -1"
}

func (s *suite) identity(t *testing.T) {
	c := s.run(t, func(c *v1.ContainerConfig) {
		sc := c.Linux.SecurityContext
		sc.RunAsUser, sc.RunAsGroup = &v1.Int64Value{Value: 1234}, &v1.Int64Value{Value: 99}
		sc.SupplementalGroups = []int64{7, 8}
		c.WorkingDir = "/tmp/work"
		c.Envs = []*v1.KeyValue{{Key: "GREETING", Value: []byte("hello world")}}
	})
	s.want(t, c, "id -u; id -g; id -G", "1234\n99\n99 7 8")
	s.want(t, c, "echo $GREETING", "hello world")
	s.want(t, c, "readlink /proc/self/cwd", "/tmp/work")
	s.want(t, c, "readlink /proc/1/cwd", "/tmp/work")
	u := c.Status(t).GetUser().GetLinux()
	if u.GetUid() != 1234 || u.GetGid() != 99 || !slices.Equal(u.GetSupplementalGroups(), []int64{99, 7, 8}) {
		t.Errorf("status: %v", u)
	}
}

func (s *suite) rights(t *testing.T) {
	c := s.run(t, func(c *v1.ContainerConfig) {
		sc := c.Linux.SecurityContext
		sc.NoNewPrivs = true
		sc.Capabilities = &v1.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}}
		sc.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}
		c.Linux.Resources = &v1.LinuxContainerResources{OomScoreAdj: 500}
	})
	s.want(t, c, "cat /proc/1/oom_score_adj", "500")
	for _, pid := range []string{"1", "self"} { // the main process, and an exec
		s.wantHas(t, c, "grep CapBnd /proc/"+pid+"/status", "0000000000001000")
		s.wantHas(t, c, "grep CapEff /proc/"+pid+"/status", "0000000000001000")
		s.wantHas(t, c, "grep NoNewPrivs /proc/"+pid+"/status", "\t1")
		s.wantHas(t, c, "grep Seccomp: /proc/"+pid+"/status", "\t2")
	}
	plain := s.run(t, func(*v1.ContainerConfig) {})
	s.want(t, plain, field("CapBnd"), "CapBnd:00000000a80425fb")
	s.want(t, plain, field("Seccomp"), "Seccomp:0")
	s.want(t, plain, "cat /proc/1/oom_score_adj", "0")
}

func (s *suite) privileged(t *testing.T) {
	cfg := s.config()
	cfg.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{Privileged: true, NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}}
	pod := s.pod(t)
	_, err := s.n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("in a sandbox that is not privileged: %v", err)
	}
	c := s.pod(t, func(p *v1.PodSandboxConfig) { p.Linux.SecurityContext.Privileged = true }).Run(t, cfg)
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, bounding, _ := strings.Cut(string(own), "CapBnd:\t")
	bounding, _, _ = strings.Cut(bounding, "\n")
	s.want(t, c, field("CapBnd"), "CapBnd:"+bounding)
	s.want(t, c, field("Seccomp"), "Seccomp:0")
	s.wantHas(t, c, "grep ' /sys ' /proc/mounts", "rw,")
	s.want(t, c, "mount -t tmpfs none /tmp && echo mounted", "mounted")
}

func (s *suite) filesystem(t *testing.T) {
	c := s.run(t, func(c *v1.ContainerConfig) {
		sc := c.Linux.SecurityContext
		sc.ReadonlyRootfs = true
		sc.MaskedPaths, sc.ReadonlyPaths = []string{"/proc/timer_list", "/etc"}, []string{"/proc/sys"}
	})
	s.wantHas(t, c, "touch /x", "Read-only file system")
	s.wantHas(t, c, "echo 1 > /proc/sys/net/ipv4/ip_forward", "Read-only file system")
	s.want(t, c, "wc -c < /proc/timer_list; ls /etc | wc -l", "0\n0")
	s.want(t, c, "touch /dev/shm/x && echo yes", "yes")
	s.wantHas(t, c, "grep ' /sys ' /proc/mounts", "ro,")
}

// volumesImage is an image that declares volumes: one with content of another user,
// one that is missing, and one that tests mount something else at.
func volumesImage(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	files = append(files, imagetest.File{Name: "data/", Mode: 0o700, UID: 33, GID: 33}, imagetest.File{Name: "data/content", Body: []byte("the image's\n"), Mode: 0o600, UID: 33, GID: 33})
	ref := imagetest.NewRegistry(t).Push("volumes", "latest", imagetest.Image{
		Layers: [][]imagetest.File{files},
		Config: imagespec.ImageConfig{Env: []string{"PATH=/bin"}, Volumes: map[string]struct{}{"/data": {}, "/made/here": {}, "/asked": {}}},
	}.Build())
	if _, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// declaredVolumes: the owner of the image's files can write to the volumes of its config, also
// with a read-only root.
func (s *suite) declaredVolumes(t *testing.T) {
	ref := volumesImage(t, s.n)
	for _, readOnly := range []bool{false, true} {
		p := s.pod(t)
		for i := range 2 { // each container has its own
			cfg := s.named(fmt.Sprintf("c%d", i))
			cfg.Image.Image = ref
			cfg.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{ReadonlyRootfs: readOnly, RunAsUser: &v1.Int64Value{Value: 33}}
			cfg.Mounts = []*v1.Mount{{ContainerPath: "/asked", HostPath: t.TempDir(), Readonly: true}}
			c := p.Run(t, cfg)
			s.want(t, c, "id -u; stat -c '%u:%g %a' /data; cat /data/content; echo changed > /data/content; cat /data/content; touch /data/new && echo new", "33\n33:33 700\nthe image's\nchanged\nnew")
			s.wantHas(t, c, "touch /x 2>&1; touch /asked/x 2>&1; echo end", "Read-only file system")
			st, err := s.n.CRI.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: c.ID})
			if err != nil {
				t.Fatal(err)
			}
			shown := map[string]*v1.Mount{}
			for _, m := range st.GetStatus().GetMounts() {
				shown[m.GetContainerPath()] = m
			}
			b, err := os.ReadFile(filepath.Join(shown["/data"].GetHostPath(), "content"))
			if err != nil || string(b) != "changed\n" || len(shown) != 3 || shown["/data"].GetReadonly() || shown["/made/here"] == nil {
				t.Errorf("mounts %v: %q, %v", shown, b, err)
			}
		}
	}
}

func (s *suite) mounts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"file": "one", "dir/inner": "two", "dir/one": "a mount point"} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "dir"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "dir", "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(below, unix.MNT_DETACH) }()
	rro := s.handler.GetFeatures().GetRecursiveReadOnlyMounts()
	c := s.run(t, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{
			{HostPath: filepath.Join(dir, "file"), ContainerPath: "/data/one"},
			{HostPath: filepath.Join(dir, "dir"), ContainerPath: "/data", Readonly: true},
			{HostPath: filepath.Join(dir, "link"), ContainerPath: "/linked"},
			{HostPath: filepath.Join(dir, "file"), ContainerPath: "/etc/hosts"},
			{HostPath: filepath.Join(dir, "dir"), ContainerPath: "/rro", Readonly: true, RecursiveReadOnly: rro},
			{HostPath: filepath.Join(dir, "dir"), ContainerPath: "/noexec", MountOptions: []string{"noexec"}},
		}
	})
	s.want(t, c, "cat /data/one /data/inner /linked/inner /etc/hosts", "onetwotwoone")
	s.wantHas(t, c, "touch /data/x", "Read-only file system")
	s.want(t, c, "touch /data/below/x && echo written", "written")
	if rro {
		s.wantHas(t, c, "touch /rro/below/x", "Read-only file system")
	}
	s.want(t, c, "echo more >> /linked/inner && echo written", "written")
	s.wantHas(t, c, "grep ' /noexec ' /proc/mounts", "noexec")
	if got := c.Status(t).GetMounts(); len(got) != 6 || got[0].GetContainerPath() != "/data/one" {
		t.Errorf("status: %v", got)
	}

	p := s.pod(t)
	cfg := s.config()
	cfg.Mounts = []*v1.Mount{{HostPath: filepath.Join(dir, "gone"), ContainerPath: "/x"}}
	p.Create(t, cfg)
	if st, err := os.Stat(filepath.Join(dir, "gone")); err != nil || !st.IsDir() {
		t.Errorf("missing source: %v, %v", st, err)
	}
}

func namespaceOptions(o *v1.NamespaceOption) (func(*v1.PodSandboxConfig), *v1.LinuxContainerSecurityContext) {
	change := func(c *v1.PodSandboxConfig) {
		if c.Linux.SecurityContext.NamespaceOptions = o; o.GetNetwork() == v1.NamespaceMode_NODE {
			c.Hostname = ""
		}
	}
	return change, &v1.LinuxContainerSecurityContext{NamespaceOptions: o}
}

func (s *suite) namespaces(t *testing.T) {
	inode := func(ns string) string {
		l, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	own := s.run(t, func(*v1.ContainerConfig) {})
	for _, ns := range []string{"net", "ipc", "uts", "pid", "mnt"} {
		if got := s.sh(t, own, "readlink /proc/1/ns/"+ns); got == inode(ns) {
			t.Errorf("%s namespace is the node's", ns)
		}
	}
	s.want(t, own, "hostname; cat /etc/hostname", "host\nhost")

	pod, sc := namespaceOptions(&v1.NamespaceOption{Network: v1.NamespaceMode_NODE, Ipc: v1.NamespaceMode_NODE, Pid: v1.NamespaceMode_NODE})
	cfg := s.config()
	cfg.Linux.SecurityContext = sc
	c := s.pod(t, pod).Run(t, cfg)
	for _, ns := range []string{"net", "ipc", "pid"} {
		s.want(t, c, "readlink /proc/self/ns/"+ns, inode(ns))
	}

	p := s.pod(t)
	a, b := p.Run(t, s.named("a")), p.Run(t, s.named("b"))
	for _, ns := range []string{"net", "ipc", "uts"} {
		s.want(t, a, "readlink /proc/self/ns/"+ns, s.sh(t, b, "readlink /proc/self/ns/"+ns))
	}
	s.sh(t, a, "echo shared > /dev/shm/x")
	s.want(t, b, "cat /dev/shm/x", "shared")
}

func (s *suite) named(name string) *v1.ContainerConfig {
	cfg := s.config()
	cfg.Metadata.Name, cfg.LogPath = name, name+".log"
	return cfg
}

// target joins another container's pid namespace, as an ephemeral container
// does, and a whole pod's.
func (s *suite) target(t *testing.T) {
	p := s.pod(t)
	first := p.Run(t, s.named("first"))
	debug := s.named("debug")
	debug.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET, TargetId: first.ID}}
	c := p.Run(t, debug)
	s.want(t, c, "readlink /proc/self/ns/pid", s.sh(t, first, "readlink /proc/self/ns/pid"))

	shared, _ := namespaceOptions(&v1.NamespaceOption{Pid: v1.NamespaceMode_POD})
	p = s.pod(t, shared)
	a, b := p.Run(t, s.named("a")), p.Run(t, s.named("b"))
	s.want(t, a, "readlink /proc/self/ns/pid", s.sh(t, b, "readlink /proc/self/ns/pid"))
}

func (s *suite) sandbox(t *testing.T) {
	p := s.pod(t, func(c *v1.PodSandboxConfig) {
		c.DnsConfig = &v1.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"svc.example"}, Options: []string{"ndots:5"}}
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "1", "kernel.shm_rmid_forced": "1"}
	})
	c := p.Run(t, s.config())
	got := s.sh(t, c, "cat /etc/resolv.conf")
	for _, want := range []string{"nameserver 192.0.2.53", "search svc.example", "options ndots:5"} {
		if !strings.Contains(got, want) {
			t.Errorf("resolv.conf lacks %q:\n%s", want, got)
		}
	}
	s.want(t, c, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced", "1\n1")
	st, err := s.n.CRI.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	s.wantHas(t, c, "ip addr show eth0", st.GetStatus().GetNetwork().GetIp()+"/")
	s.wantHas(t, c, "cat /etc/hosts", st.GetStatus().GetNetwork().GetIp())
}

func (s *suite) devices(t *testing.T) {
	c := s.run(t, func(c *v1.ContainerConfig) {
		c.Devices = []*v1.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/naught", Permissions: "r"}}
	})
	s.want(t, c, "head -c 3 /dev/naught | wc -c", "3")
	s.want(t, c, "echo x > /dev/null && head -c 2 /dev/urandom | wc -c", "2")
}

func (s *suite) limits(t *testing.T) {
	c := s.run(t, func(c *v1.ContainerConfig) {
		c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512, CpuPeriod: 100000, CpuQuota: 50000}
	})
	if r := c.Status(t).GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 64<<20 || r.GetCpuShares() != 512 || r.GetCpuQuota() != 50000 {
		t.Errorf("status: %v", r)
	}
	_, err := s.n.CRI.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 96<<20 + 5, CpuQuota: 70000},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The kernel counts in pages: the status has the real limit.
	if r := c.Status(t).GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 96<<20 || r.GetCpuQuota() != 70000 || r.GetCpuShares() != 512 {
		t.Errorf("status after the update: %v", r)
	}
	s.sh(t, c, "yes | head -c 1000000 | sha256sum")
	st, err := s.n.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	m := st.GetStats().GetMemory()
	if st.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || m.GetUsageBytes().GetValue() == 0 || m.GetAvailableBytes().GetValue() == 0 {
		t.Errorf("stats: %v", st)
	}
	fs, err := s.n.Images.ImageFsInfo(t.Context(), &v1.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// By this kubelet finds the filesystem that a container fills.
	if l := st.GetStats().GetWritableLayer(); l.GetUsedBytes() == nil || l.GetFsId().GetMountpoint() != fs.GetContainerFilesystems()[0].GetFsId().GetMountpoint() {
		t.Errorf("writable layer %v, filesystem %v", l, fs)
	}
	pod, err := s.n.CRI.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: c.Pod.ID})
	if err != nil || len(pod.GetStats().GetLinux().GetContainers()) != 1 || pod.GetStats().GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("pod stats: %v, %v", pod, err)
	}
	if net := pod.GetStats().GetLinux().GetNetwork(); net != nil && net.GetDefaultInterface().GetName() != "eth0" {
		t.Errorf("network stats: %v", net)
	}
}

func (s *suite) oom(t *testing.T) {
	victim := s.pod(t)
	cfg := s.config("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=40M")
	cfg.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 15 << 20, MemorySwapLimitInBytes: 15 << 20}
	if st := victim.Run(t, cfg).WaitExited(t); st.GetReason() != "OOMKilled" || st.GetExitCode() != 137 {
		t.Errorf("main: %s, %d", st.GetReason(), st.GetExitCode())
	}
	// A child dies for want of memory, the main process lives and ends well.
	child := s.pod(t)
	cfg = s.config("/bin/sh", "-c", "dd if=/dev/zero of=/dev/null bs=40M; echo code $?; exit 0")
	cfg.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 15 << 20, MemorySwapLimitInBytes: 15 << 20}
	c := child.Run(t, cfg)
	if st := c.WaitExited(t); st.GetReason() != "Completed" || st.GetExitCode() != 0 || st.GetMessage() != "" {
		t.Errorf("child: %s, %d, %q", st.GetReason(), st.GetExitCode(), st.GetMessage())
	}
	if log := c.ReadLog(t); !strings.Contains(log, "code 137") {
		t.Errorf("the child was not killed:\n%s", log)
	}
}

func (s *suite) exec(t *testing.T) {
	c := s.run(t, func(*v1.ContainerConfig) {})
	r, err := s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", "echo out; echo err >&2; exit 9"}})
	if err != nil || string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" || r.GetExitCode() != 9 {
		t.Errorf("%v, %v", r, err)
	}
	r, err = s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/head", "-c", "3000000", "/dev/zero"}})
	if err != nil || !bytes.Equal(r.GetStdout(), make([]byte, 3_000_000)) {
		t.Errorf("%d bytes, %v", len(r.GetStdout()), err)
	}
	r, err = s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/head", "-c", "20000000", "/dev/zero"}})
	if err != nil || len(r.GetStdout()) != 16<<20-4<<10 || r.GetExitCode() != 0 {
		t.Errorf("%d bytes, code %d, %v", len(r.GetStdout()), r.GetExitCode(), err)
	}
	_, err = s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sleep", "777"}, Timeout: 1})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("timeout: %v", err)
	}
	nodetest.Eventually(t, "the exec that timed out is gone", func() bool { return !strings.Contains(s.sh(t, c, "ps"), "sleep 777") })
	if _, err = s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/no/such/program"}}); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("missing program: %v", err)
	}
	r, err = s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", "kill -9 $$"}})
	if err != nil || r.GetExitCode() != 137 {
		t.Errorf("killed: %v, %v", r, err)
	}
}

func (s *suite) log(t *testing.T) {
	p := s.pod(t)
	c := p.Run(t, s.config("/bin/sh", "-c", "echo first; printf part; while test ! -e /go; do sleep 0.02; done; echo; echo second >&2; exec sleep 1000"))
	nodetest.Eventually(t, "the first lines", func() bool { return strings.Contains(c.ReadLog(t), " stdout P part\n") })
	if !strings.Contains(c.ReadLog(t), " stdout F first\n") {
		t.Errorf("log:\n%s", c.ReadLog(t))
	}
	if err := os.Rename(c.Log, c.Log+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.n.CRI.ReopenContainerLog(t.Context(), &v1.ReopenContainerLogRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	s.sh(t, c, "touch /go")
	nodetest.Eventually(t, "the second line in the new file", func() bool { return strings.Contains(c.ReadLog(t), " stderr F second\n") })
	if strings.Contains(c.ReadLog(t), "first") {
		t.Errorf("the new log has the old lines:\n%s", c.ReadLog(t))
	}
}

func (s *suite) stop(t *testing.T) {
	p := s.pod(t)
	trap := func(name, signal string) *v1.ContainerConfig {
		cfg := s.named(name)
		cfg.Command = []string{"/bin/sh", "-c", "trap 'exit 42' " + signal + "; echo ready; while :; do sleep 0.02; done"}
		return cfg
	}
	stop := func(c *nodetest.Container, timeout int64) *v1.ContainerStatus {
		t.Helper()
		nodetest.Eventually(t, "the trap is set", func() bool { return strings.Contains(c.ReadLog(t), "ready") })
		if _, err := s.n.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: c.ID, Timeout: timeout}); err != nil {
			t.Fatal(err)
		}
		return c.Status(t)
	}
	if st := stop(p.Run(t, trap("term", "TERM")), 60); st.GetExitCode() != 42 || st.GetReason() != "Error" {
		t.Errorf("SIGTERM: %v", st)
	}
	usr := trap("usr1", "USR1")
	usr.StopSignal = v1.Signal_SIGNAL_SIGUSR1
	if st := stop(p.Run(t, usr), 60); st.GetExitCode() != 42 || st.GetStopSignal() != v1.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("SIGUSR1: %v", st)
	}
	if st := stop(p.Run(t, trap("deaf", "INT")), 0); st.GetExitCode() != 137 {
		t.Errorf("at once: %v", st)
	}
}

func (s *suite) cannotRun(t *testing.T) {
	p := s.pod(t)
	for _, command := range []string{"/no/such/program", "/etc"} {
		cfg := s.named("c" + strings.ReplaceAll(command, "/", "-"))
		cfg.Command = []string{command}
		// crun and runc look for the program when the container is made, others when it is
		// started: the start fails.
		r, err := s.n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
		if err != nil {
			t.Errorf("%s: refused at create: %v", command, err)
			continue
		}
		s.n.Check()
		_, err = s.n.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: r.GetContainerId()})
		c := p.Container(r.GetContainerId(), cfg)
		if st := c.WaitExited(t); st.GetReason() != "StartError" || st.GetMessage() == "" || st.GetExitCode() != 128 || st.GetFinishedAt() == 0 {
			t.Errorf("%s: %v", command, st)
		}
		if err == nil || !strings.Contains(err.Error(), "executable") && !strings.Contains(err.Error(), command) {
			t.Errorf("%s: %v", command, err)
		}
	}
}
