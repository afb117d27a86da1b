package cri

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// cgroupsOf asks for a cgroup namespace and a mode of the mount.
func cgroupsOf(ns *v1.CgroupNamespace, mode v1.CgroupMountMode) func(*v1.ContainerConfig) {
	return func(c *v1.ContainerConfig) {
		if c.GetLinux().GetSecurityContext() == nil {
			c.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{}}
		}
		sc := c.GetLinux().GetSecurityContext()
		if sc.NamespaceOptions == nil {
			sc.NamespaceOptions = &v1.NamespaceOption{}
		}
		sc.NamespaceOptions.CgroupnsOptions, sc.CgroupMountMode = ns, mode
	}
}

// TestCgroupNamespaces shows a container's own cgroup namespace and the node's, and cgroups that a container without
// privileges can write: with cgroup v2 mounted with nsdelegate only, which the features of the runtime say.
func TestCgroupNamespaces(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		s := &suite{n: n, image: n.Busybox(t), handler: &v1.RuntimeHandler{}}
		own, node := &v1.CgroupNamespace{Mode: v1.NamespaceMode_CONTAINER}, &v1.CgroupNamespace{Mode: v1.NamespaceMode_NODE}
		host, err := os.Readlink("/proc/self/ns/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		s.want(t, s.run(t, cgroupsOf(node, 0)), "readlink /proc/self/ns/cgroup", host)
		s.want(t, s.run(t, cgroupsOf(own, 0)), "test $(readlink /proc/self/ns/cgroup) = '"+host+"' || grep -c . /proc/self/cgroup > /dev/null && cut -d: -f3 /proc/self/cgroup | sort -u", "/")
		s.wantHas(t, s.run(t, cgroupsOf(own, v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY)), "mkdir /sys/fs/cgroup/x", "Read-only file system")

		st, err := n.CRI.Status(t.Context(), &v1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range st.GetRuntimeHandlers() {
			if h.GetName() == "" && !h.GetFeatures().GetCgroupNamespaces() {
				t.Error("the default handler reports no cgroup namespaces")
			}
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		able := false
		for line := range strings.Lines(string(mounts)) {
			f := strings.Fields(line)
			able = able || f[1] == "/sys/fs/cgroup" && f[2] == "cgroup2" && strings.Contains(f[3], "nsdelegate")
		}
		if got := st.GetFeatures().GetCgroupMountMode(); got != able {
			t.Errorf("cgroup_mount_mode is %v, a writable mount is possible: %v\n%s", got, able, mounts)
		}
		write := cgroupsOf(own, v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE)
		if !able {
			p, cfg := s.pod(t), s.config()
			write(cfg)
			_, err := n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "cgroup_mount_mode") {
				t.Errorf("a writable mount: %v", err)
			}
			return
		}
		const divide = "mkdir /sys/fs/cgroup/x && echo 0 > /sys/fs/cgroup/x/cgroup.procs && grep -c . /sys/fs/cgroup/x/cgroup.procs"
		limited := func(c *v1.ContainerConfig) {
			write(c)
			c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
		}
		c := s.run(t, limited)
		s.want(t, c, divide, "2")
		// The limit is on a cgroup that the container does not see.
		s.wantHas(t, c, "echo max > /sys/fs/cgroup/memory.max; dd if=/dev/zero of=/dev/shm/x bs=1M count=60 2> /dev/null; dd if=/dev/zero of=/tmp/y bs=1M count=1; find /sys/fs/cgroup -name 'cgroup.procs' | wc -l", "2")
		if got := c.Status(t).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 64<<20 {
			t.Errorf("the limit is %d", got)
		}
		t.Run("in a user namespace", func(t *testing.T) {
			ids := []*v1.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}}
			userns := &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids, Gids: ids}
			p := s.pod(t, func(c *v1.PodSandboxConfig) {
				c.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: &v1.NamespaceOption{UsernsOptions: userns}}}
			})
			cfg := s.config()
			cfg.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{UsernsOptions: userns}}}
			write(cfg)
			s.want(t, p.Run(t, cfg), divide, "2")
		})
		n.Check()
	})
}
