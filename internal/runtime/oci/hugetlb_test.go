package oci

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// some is a node's cgroups with some controllers.
type some struct {
	core.Cgroups
	names []string
}

func (s some) Controllers() []string { return s.names }

func TestIdleHugePagesAreLeftOutWhereNobodyLimitsThem(t *testing.T) {
	res := &specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}, {Pagesize: "1GB", Limit: 1 << 30}}}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: res}}
	for _, c := range []struct {
		names []string
		want  int
	}{{[]string{"cpu", "hugetlb"}, 2}, {[]string{"cpu"}, 1}} {
		r := &Runtime{o: Options{Cgroups: some{names: c.names}}}
		if got := r.specWithoutIdle(spec).Linux.Resources.HugepageLimits; len(got) != c.want {
			t.Errorf("with %v: %v", c.names, got)
		}
	}
	if len(res.HugepageLimits) != 2 {
		t.Errorf("the caller's limits became %v", res.HugepageLimits)
	}
	if got := (&Runtime{}).specWithoutIdle(&specs.Spec{}); got.Linux != nil {
		t.Error("a spec without limits got some")
	}
}
