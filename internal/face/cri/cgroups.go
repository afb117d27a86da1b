package cri

import (
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// cgroupTree is the place of the cgroups in every container.
const cgroupTree = "/sys/fs/cgroup"

// cgroupNamespace reports whether a container is in the node's cgroup namespace. Without a request it has its own.
func cgroupNamespace(sc *v1.LinuxContainerSecurityContext) (host bool, err error) {
	ns := sc.GetNamespaceOptions().GetCgroupnsOptions()
	switch {
	case ns == nil || ns.GetMode() == v1.NamespaceMode_CONTAINER:
		return false, nil
	case ns.GetMode() == v1.NamespaceMode_NODE:
		return true, nil
	}
	return false, invalid.Errorf("container: cgroupns_options: mode %s: only CONTAINER and NODE are possible", ns.GetMode())
}

// checkCgroups refuses requests about cgroups that no node can fulfil.
func checkCgroups(cfg *v1.ContainerConfig) error {
	sc := cfg.GetLinux().GetSecurityContext()
	host, err := cgroupNamespace(sc)
	mode := sc.GetCgroupMountMode()
	switch {
	case err != nil:
		return err
	case mode == v1.CgroupMountMode_CGROUP_MOUNT_MODE_UNSPECIFIED:
		return nil
	case mode == v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY && sc.GetPrivileged():
		return invalid.Errorf("container: cgroup_mount_mode %s: the cgroups of a privileged container are always writable", mode)
	case mode == v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE && host && !sc.GetPrivileged():
		return invalid.Errorf("container: cgroup_mount_mode %s: not in the node's cgroup namespace, unless the container is privileged", mode)
	}
	for _, m := range cfg.GetMounts() {
		if at := path.Clean("/" + m.GetContainerPath()); strings.HasPrefix(cgroupTree+"/", at+"/") {
			return invalid.Errorf("container: cgroup_mount_mode %s: the mount at %s takes the place of %s", mode, at, cgroupTree)
		}
	}
	return nil
}

// writableCgroups reports whether a container without privileges asks for writable cgroups.
func writableCgroups(sc *v1.LinuxContainerSecurityContext) bool {
	return sc.GetCgroupMountMode() == v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE && !sc.GetPrivileged()
}

// cgroups sets a container's cgroup namespace and its writable cgroups. The limits of such a container are on a cgroup
// that it does not see, above the one that it can write.
func (a containerAsk) cgroups(out *core.ContainerConfig) (err error) {
	sc := a.req.GetConfig().GetLinux().GetSecurityContext()
	if out.HostCgroups, err = cgroupNamespace(sc); err != nil {
		return err
	}
	asked, mode := sc.GetNamespaceOptions().GetCgroupnsOptions() != nil, sc.GetCgroupMountMode()
	if !asked && mode == v1.CgroupMountMode_CGROUP_MOUNT_MODE_UNSPECIFIED {
		return nil
	}
	switch {
	case a.holdsOnly():
		return invalid.Errorf("container: cgroupns_options and cgroup_mount_mode: a program with grants sees no cgroups")
	case asked && !a.runtime.CgroupNamespaces:
		return invalid.Errorf("container: cgroupns_options: the runtime has no cgroup namespaces")
	case mode != v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE:
		return nil
	case a.runtime.Path != "" && !sc.GetPrivileged():
		return invalid.Errorf("container: cgroup_mount_mode %s: only the native runtime can let a container divide its cgroup", mode)
	case a.writable != nil:
		return invalid.Errorf("container: cgroup_mount_mode %s: %v", mode, a.writable)
	}
	out.Delegate = writableCgroups(sc)
	return nil
}

// writeCgroups makes the mount of the cgroups writable where the request says so.
func (a containerAsk) writeCgroups(s *specs.Spec) {
	if !writableCgroups(a.req.GetConfig().GetLinux().GetSecurityContext()) {
		return
	}
	for _, m := range s.Mounts {
		for i, o := range m.Options {
			if m.Destination == cgroupTree && o == "ro" {
				m.Options[i] = "rw"
			}
		}
	}
}
