package cri

import (
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// TestCgroupRequests shows each combination of a cgroup namespace and a mode of the mount, and the reason of each refusal.
func TestCgroupRequests(t *testing.T) {
	const (
		usual, reads, writes = v1.CgroupMountMode_CGROUP_MOUNT_MODE_UNSPECIFIED, v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY, v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE
		pod, own, node, none = v1.NamespaceMode_POD, v1.NamespaceMode_CONTAINER, v1.NamespaceMode_NODE, v1.NamespaceMode(-1)
	)
	type result struct {
		host, delegate bool
		mount, refusal string
	}
	for name, c := range map[string]struct {
		ns         v1.NamespaceMode
		mode       v1.CgroupMountMode
		privileged bool
		change     func(*containerAsk)
		want       result
	}{
		"nothing":                   {none, usual, false, nil, result{mount: "ro"}},
		"own":                       {own, usual, false, nil, result{mount: "ro"}},
		"node":                      {node, usual, false, nil, result{host: true, mount: "ro"}},
		"pod":                       {pod, usual, false, nil, result{refusal: "mode POD"}},
		"target":                    {v1.NamespaceMode_TARGET, usual, false, nil, result{refusal: "mode TARGET"}},
		"read-only":                 {own, reads, false, nil, result{mount: "ro"}},
		"read-only on the node's":   {node, reads, false, nil, result{host: true, mount: "ro"}},
		"read-only, privileged":     {none, reads, true, nil, result{refusal: "always writable"}},
		"writable":                  {none, writes, false, nil, result{delegate: true, mount: "rw"}},
		"writable, node":            {node, writes, false, nil, result{refusal: "unless the container is privileged"}},
		"writable, node, privilege": {node, writes, true, nil, result{host: true, mount: "rw"}},
		"writable, privilege":       {own, writes, true, nil, result{mount: "rw"}},
		"not on this node":          {own, writes, false, func(a *containerAsk) { a.writable = errors.New("hybrid") }, result{refusal: "READ_WRITE: hybrid"}},
		"not by a program":          {own, writes, false, func(a *containerAsk) { a.runtime.Path = "/usr/bin/crun" }, result{refusal: "only the native runtime"}},
		"not with this runtime":     {own, usual, false, func(a *containerAsk) { a.runtime = core.RuntimeFeatures{} }, result{refusal: "no cgroup namespaces"}},
		"covered": {own, writes, false, func(a *containerAsk) {
			a.req.Config.Mounts = []*v1.Mount{{HostPath: "/sys", ContainerPath: "/sys/"}}
		}, result{refusal: "the mount at /sys"}},
		"below it": {own, writes, false, func(a *containerAsk) {
			a.req.Config.Mounts = []*v1.Mount{{HostPath: "/sys", ContainerPath: "/sys/fs/cgroup/x"}}
		}, result{delegate: true, mount: "rw"}},
		"a program with grants": {own, usual, false, func(a *containerAsk) { a.sandbox.Config.Runtime = core.GrantHandler }, result{refusal: "sees no cgroups"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.Privileged, sc.CgroupMountMode = c.privileged, c.mode
				if c.ns != none {
					sc.NamespaceOptions = &v1.NamespaceOption{CgroupnsOptions: &v1.CgroupNamespace{Mode: c.ns}}
				}
			}))
			a.runtime.CgroupNamespaces = true
			if c.change != nil {
				c.change(&a)
			}
			var out core.ContainerConfig
			err := checkCgroups(a.req.GetConfig())
			if err == nil {
				err = a.cgroups(&out)
			}
			if c.want.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), c.want.refusal) {
					t.Errorf("%v; want %q", err, c.want.refusal)
				}
				return
			}
			if err != nil || out.HostCgroups != c.want.host || out.Delegate != c.want.delegate {
				t.Errorf("%v: host %v, delegate %v", err, out.HostCgroups, out.Delegate)
			}
			s := specs.Spec{Linux: &specs.Linux{}}
			if err := a.mounts(&s); err != nil {
				t.Fatal(err)
			}
			for _, m := range s.Mounts {
				if m.Type == "cgroup" && m.Options[len(m.Options)-1] != c.want.mount {
					t.Errorf("%v", m)
				}
				if m.Type == "sysfs" && !c.privileged && m.Options[len(m.Options)-1] != "ro" {
					t.Errorf("%v", m)
				}
			}
		})
	}
}
