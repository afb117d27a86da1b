package kubelet

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestMemoryQoS: kubelet sets memory.high of containers and protects the memory of their requests. cgroup v1 has
// neither.
func TestMemoryQoS(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		t.Skip("this machine has no cgroup v2 alone")
	}
	isolated(t, memoryQoS)
}

// shares is the start of a script. It prints the memory limits of the container.
const shares = `cd /sys/fs/cgroup
for f in max high low min swap.max; do echo $f=$(cat memory.$f); done
`

func memoryQoS(t *testing.T) {
	const mib = 1 << 20
	factor := 0.9
	n := start(t, options{config: map[string]any{
		"featureGates":           map[string]bool{"MemoryQoS": true},
		"memoryThrottlingFactor": factor, "memoryReservationPolicy": "TieredReservation",
	}})
	with := func(name, request, limit, script string) *corev1.Pod {
		c := shell("main", shares+script)
		c.Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request), corev1.ResourceCPU: resource.MustParse("200m")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit), corev1.ResourceCPU: resource.MustParse("1")},
		}
		if request == limit {
			c.Resources.Requests = c.Resources.Limits
		}
		return pod(name, c)
	}
	high := int((64*mib+192*mib*factor)/4096) * 4096
	// The program has more than memory.high, and less than its limit: it is slowed, not killed.
	n.add(t, with("burstable", "64Mi", "256Mi", `subject eat 240 &
until [ $(sed -n 's/^high //p' memory.events) -gt 0 ]; do sleep 0.2; done
echo slowed
wait`))
	out := n.said(t, "burstable", "main", "slowed\n")
	contains(t, out, fmt.Sprintf("max=%d\nhigh=%d\nlow=%d\nmin=0\nswap.max=0\n", 256*mib, high, 64*mib))
	n.said(t, "burstable", "main", "ate 240\n")
	if s := status(n.pod(t, "burstable"), "main"); s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("%+v", s)
	}
	n.add(t, with("guaranteed", "64Mi", "64Mi", idle))
	out = n.said(t, "guaranteed", "main", "swap.max=")
	contains(t, out, fmt.Sprintf("max=%d\nhigh=max\nlow=0\nmin=%d\n", 64*mib, 64*mib))
	// By default kubelet lets the kernel end all processes of a container together (memory.oom.group).
	c := shell("main", "subject eat 200 & wait; echo survived; "+idle)
	c = limited(c, "64Mi")
	p := pod("group", c)
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	n.add(t, p)
	if s := status(n.ended(t, "group"), "main").State.Terminated; s == nil || s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("after a child's OOM: %+v", s)
	}
}
