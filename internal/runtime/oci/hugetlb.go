package oci

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// controllers returns the cgroup controllers of a node.
type controllers interface{ Controllers() []string }

// withoutIdle returns res without limits of zero for controllers that this node does not
// have. kubelet sets a limit of 0 for every size of huge pages, and programs fail
// without the controller.
func (r *Runtime) withoutIdle(res *specs.LinuxResources) *specs.LinuxResources {
	if res == nil || len(res.HugepageLimits) == 0 {
		return res
	}
	c, ok := r.o.Cgroups.(controllers)
	if !ok || slices.Contains(c.Controllers(), "hugetlb") {
		return res
	}
	with := *res
	with.HugepageLimits = slices.DeleteFunc(slices.Clone(res.HugepageLimits), func(h specs.LinuxHugepageLimit) bool { return h.Limit == 0 })
	return &with
}

// specWithoutIdle is withoutIdle for a spec.
func (r *Runtime) specWithoutIdle(spec *specs.Spec) *specs.Spec {
	if spec.Linux == nil {
		return spec
	}
	with, linux := *spec, *spec.Linux
	linux.Resources = r.withoutIdle(linux.Resources)
	with.Linux = &linux
	return &with
}
