package kata

import (
	"slices"
	"strings"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestAnExecWithoutCapabilitiesHasTheContainers, and one with an empty set has none.
func TestAnExecWithoutCapabilitiesHasTheContainers(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	spec := specOf(t, "cat")
	caps := []string{"CAP_CHOWN", "CAP_KILL"}
	spec.GetProcess().Capabilities = &katav1.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
	ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	for id, c := range map[string]struct {
		asked *katav1.LinuxCapabilities
		want  []string
	}{
		"absent": {nil, caps},
		"empty":  {&katav1.LinuxCapabilities{}, nil},
		"own":    {&katav1.LinuxCapabilities{Bounding: caps[:1], Effective: caps[:1], Permitted: caps[:1]}, caps[:1]},
	} {
		_, err := r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: id, Process: &katav1.Process{Args: []string{"cat"}, Cwd: "/", User: &katav1.User{}, Capabilities: c.asked}})
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		p := r.node.Supervisor.Process(core.Ref{Container: ct.ID, Process: core.ProcessID(id)}).Spec
		if p == nil || p.Capabilities == nil || !slices.Equal(p.Capabilities.Effective, c.want) || !slices.Equal(p.Capabilities.Bounding, c.want) {
			t.Errorf("%s: %+v", id, p)
		}
	}
}

// TestSysctlsOfTheNetworkAreTheMachines: a container has no network namespace of its own.
func TestSysctlsOfTheNetworkAreTheMachines(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	r.machine.heard()
	spec := specOf(t, "cat")
	spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647", "kernel.shmmax": "100"}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: spec}); err != nil {
		t.Fatal(err)
	}
	if got := r.machine.heard(); got != "sysctl net.ipv4.ip_unprivileged_port_start=0; sysctl net.ipv4.ping_group_range=0 2147483647" {
		t.Errorf("the machine was told %q", got)
	}
	spec.Linux.Sysctl = map[string]string{"vm.swappiness": "1"}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: spec}); err == nil || !strings.Contains(err.Error(), "shared by the whole machine") {
		t.Errorf("a sysctl of the machine: %v", err)
	}
}

// TestAProgramThatIsNotThereFailsTheCreate, which leaves nothing.
func TestAProgramThatIsNotThereFailsTheCreate(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		r := newRig(t)
		r.sandbox(t)
		r.node.Runtime.Refuse(refusal.Err, "Create")
		for range 2 { // the ID is free again
			_, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{
				ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "none"), Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/run/kata-containers/sandbox/e"}},
			})
			if err == nil || !strings.Contains(err.Error(), refusal.Err.Error()) {
				t.Errorf("%s: create: %v", name, err)
			}
		}
		r.node.Runtime.Fail(nil)
		list, err := r.node.As(core.OwnerKata).Containers(t.Context(), core.Filter{})
		if err != nil || len(list) > 0 {
			t.Errorf("%s: left: %v, %v", name, list, err)
		}
		r.machine.mu.Lock()
		if len(r.machine.mounted) > 0 {
			t.Errorf("%s: still mounted: %v", name, r.machine.mounted)
		}
		r.machine.mu.Unlock()
		r.run(t, "c1", "cat")
	}
}
