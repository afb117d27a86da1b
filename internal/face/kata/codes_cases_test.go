package kata

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/core"
)

// trials are the cases of the code table.
func trials() []trial {
	return slices.Concat(sandboxTrials(), creations(), containerTrials(), processTrials(), outputTrials(), networkTrials(), hardwareTrials())
}

func sandboxTrials() []trial {
	create := func(req *katav1.CreateSandboxRequest) func(*testing.T, *rig) error {
		return func(t *testing.T, r *rig) error {
			t.Helper()
			_, err := r.CreateSandbox(t.Context(), req)
			list, lerr := r.node.As(core.OwnerKata).Sandboxes(t.Context(), core.Filter{})
			if lerr != nil || err == nil && (len(list) != 1 || list[0].Labels[sandboxName] != req.GetSandboxId()) {
				t.Errorf("the sandboxes are %v, %v", list, lerr)
			}
			if err != nil && len(list) == 0 && len(r.machine.mounted) > 0 {
				t.Errorf("a refused sandbox left %v", r.machine.mounted)
			}
			return err
		}
	}
	storages := []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/a"}}
	destroy := says(agent.DestroySandbox, &katav1.DestroySandboxRequest{})
	return []trial{
		{"CreateSandbox", "a sandbox", bare, create(&katav1.CreateSandboxRequest{SandboxId: "s1", Storages: storages})},
		{"CreateSandbox", "a sandbox without an id", bare, create(&katav1.CreateSandboxRequest{})},
		{"CreateSandbox", "an id that is a path", bare, create(&katav1.CreateSandboxRequest{SandboxId: "../s1"})},
		{"CreateSandbox", "a storage that cannot be mounted", bare, create(&katav1.CreateSandboxRequest{Storages: append(storages, &katav1.Storage{Driver: "broken", MountPoint: "/b"})})},
		{"CreateSandbox", "a machine that fails", func(_ *testing.T, r *rig) { r.machine.fails = errBroken }, create(&katav1.CreateSandboxRequest{Dns: []string{"x"}, Storages: storages})},
		{"CreateSandbox", "a second sandbox", boxed, create(&katav1.CreateSandboxRequest{SandboxId: "s1"})},
		{"DestroySandbox", "the sandbox", running, func(t *testing.T, r *rig) error {
			err := destroy(t, r)
			if list, lerr := r.node.As(core.OwnerKata).Containers(t.Context(), core.Filter{}); lerr != nil || len(list) > 0 {
				t.Errorf("left: %v, %v", list, lerr)
			}
			return err
		}},
		{"DestroySandbox", "no sandbox", bare, destroy},
		{"DestroySandbox", "a container that cannot be removed", running, func(t *testing.T, r *rig) error {
			r.node.Cgroups.Fail(func(string) error { return errBroken })
			defer r.node.Cgroups.Fail(nil)
			return destroy(t, r)
		}},
		{"GetGuestDetails", "all details", bare, says(agent.GetGuestDetails, &katav1.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true}, "mem_block_size_bytes:134217728", "block")},
		{"GetGuestDetails", "a machine that fails", broken(errBroken), says(agent.GetGuestDetails, &katav1.GuestDetailsRequest{MemBlockSize: true})},
		{"Check", "the agent", bare, func(t *testing.T, r *rig) error {
			a, err := r.health.Check(t.Context(), &katav1.CheckRequest{})
			if a.GetStatus() != katav1.HealthCheckResponse_SERVING {
				t.Errorf("Check answers %v", a)
			}
			return err
		}},
		{"Version", "the agent", bare, func(t *testing.T, r *rig) error {
			a, err := r.health.Version(t.Context(), &katav1.CheckRequest{})
			if a.GetAgentVersion() != "1" || a.GetGrpcVersion() != wireVersion {
				t.Errorf("Version answers %v", a)
			}
			return err
		}},
		{"MemAgentMemcgSet", "no memory agent", bare, says(agent.MemAgentMemcgSet, &katav1.MemAgentMemcgConfig{})},
		{"MemAgentCompactSet", "no memory agent", bare, says(agent.MemAgentCompactSet, &katav1.MemAgentCompactConfig{})},
		{"SetPolicy", "a policy", bare, says(agent.SetPolicy, &katav1.SetPolicyRequest{Policy: "ExecProcessRequest"})},
		{"SetPolicy", "a policy that is none", bare, says(agent.SetPolicy, &katav1.SetPolicyRequest{Policy: "malformed"})},
		{"SetPolicy", "a policy that allows no other", bare, says(agent.SetPolicy, &katav1.SetPolicyRequest{Policy: ""})},
		{"SetPolicy", "no policies", bare, says(agent.SetPolicy, &katav1.SetPolicyRequest{Policy: "package agent_policy"})},
		{"GetOOMEvent", "a container", boxed, func(t *testing.T, r *rig) error {
			r.run(t, "hungry", "hog")
			return says(agent.GetOOMEvent, &katav1.GetOOMEventRequest{}, "hungry")(t, r)
		}},
		{"GetOOMEvent", "no sandbox any more", bare, func(t *testing.T, r *rig) error {
			told := make(chan error, 1)
			go func() {
				_, err := r.GetOOMEvent(t.Context(), &katav1.GetOOMEventRequest{})
				told <- err
			}()
			for number := range r.waits {
				if number == 2 { // the server has the question
					break
				}
			}
			if _, err := katav1.NewAgentServiceClient(r.dial(t)).DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
				t.Error(err)
			}
			return <-told
		}},
	}
}

// creations are the cases of CreateContainer: the sandbox has c1, and a call creates c2.
func creations() []trial {
	with := func(change func(*katav1.CreateContainerRequest)) func(*testing.T, *rig) error {
		return func(t *testing.T, r *rig) error {
			t.Helper()
			req := &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: specOf(t, "cat"), Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/a"}}}
			change(req)
			_, err := r.CreateContainer(t.Context(), req)
			ct, lerr := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c2")
			if err == nil && (lerr != nil || ct.State != core.ContainerCreated || len(r.machine.mounted) != 1) || err != nil && (!errdefs.IsNotFound(lerr) || len(r.machine.mounted) > 0) {
				t.Errorf("answer %v, the container %v, %v, mounted %v", err, ct.State, lerr, r.machine.mounted)
			}
			return err
		}
	}
	c := func(when string, change func(*katav1.CreateContainerRequest)) trial {
		return trial{"CreateContainer", when, running, with(change)}
	}
	return []trial{
		c("a container", func(*katav1.CreateContainerRequest) {}),
		{"CreateContainer", "no sandbox", bare, with(func(*katav1.CreateContainerRequest) {})},
		c("an id that is a path", func(q *katav1.CreateContainerRequest) { q.ContainerId = "../c2" }),
		c("an id of one letter", func(q *katav1.CreateContainerRequest) { q.ContainerId = "c" }),
		c("an exec id that is a path", func(q *katav1.CreateContainerRequest) { q.ExecId = "a/b" }),
		c("an id that is taken", func(q *katav1.CreateContainerRequest) { q.ContainerId = "c1" }),
		c("no spec", func(q *katav1.CreateContainerRequest) { q.OCI = nil }),
		c("no process", func(q *katav1.CreateContainerRequest) { q.OCI.Process = nil }),
		c("no arguments", func(q *katav1.CreateContainerRequest) { q.OCI.Process.Args = nil }),
		c("no root", func(q *katav1.CreateContainerRequest) { q.OCI.Root = nil }),
		c("a storage that cannot be mounted", func(q *katav1.CreateContainerRequest) {
			q.Storages = append(q.Storages, &katav1.Storage{Driver: "broken", MountPoint: "/b"})
		}),
		c("a group that is too large", func(q *katav1.CreateContainerRequest) { q.Storages[0].FsGroup = &katav1.FSGroup{GroupId: 1 << 31} }),
		c("a device that is not there", func(q *katav1.CreateContainerRequest) {
			q.Devices = []*katav1.Device{{Type: "blk", Id: "02/00", ContainerPath: "/dev/disk"}}
			q.OCI.Linux.Devices = []*katav1.LinuxDevice{{Path: "/dev/disk", Type: "b"}}
		}),
		{"CreateContainer", "a container that cannot be launched", running, func(t *testing.T, r *rig) error {
			r.node.Cgroups.Fail(func(call string) error {
				if call == "Create" {
					return errBroken
				}
				return nil
			})
			defer r.node.Cgroups.Fail(nil)
			return with(func(*katav1.CreateContainerRequest) {})(t, r)
		}},
		c("shared mounts", func(q *katav1.CreateContainerRequest) { q.SharedMounts = []*katav1.SharedMount{{}} }),
		c("output by a port", func(q *katav1.CreateContainerRequest) { q.StdoutPort = 5 }),
	}
}

// refusing makes cgroups fail.
func refusing(t *testing.T, r *rig) {
	t.Helper()
	running(t, r)
	r.node.Cgroups.Fail(func(string) error { return errBroken })
	t.Cleanup(func() { r.node.Cgroups.Fail(nil) })
}

func containerTrials() []trial {
	limits := &katav1.LinuxResources{Memory: &katav1.LinuxMemory{Limit: 1 << 26}}
	return []trial{
		{"StartContainer", "a container", boxed, func(t *testing.T, r *rig) error {
			if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: specOf(t, "cat")}); err != nil {
				return err
			}
			return says(agent.StartContainer, &katav1.StartContainerRequest{ContainerId: "c1"})(t, r)
		}},
		{"StartContainer", "no container", nil, says(agent.StartContainer, &katav1.StartContainerRequest{ContainerId: "none"})},
		{"StartContainer", "a container that runs", nil, says(agent.StartContainer, &katav1.StartContainerRequest{ContainerId: "c1"})},
		{"RemoveContainer", "a container that runs", nil, func(t *testing.T, r *rig) error {
			err := says(agent.RemoveContainer, &katav1.RemoveContainerRequest{ContainerId: "c1", Timeout: 60})(t, r)
			if _, lerr := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1"); !errdefs.IsNotFound(lerr) {
				t.Errorf("the container is still there: %v", lerr)
			}
			return err
		}},
		{"RemoveContainer", "no container", nil, says(agent.RemoveContainer, &katav1.RemoveContainerRequest{ContainerId: "none"})},
		{"RemoveContainer", "no time left", nil, func(t *testing.T, r *rig) error {
			late := make(chan struct{})
			r.node.Cgroups.Fail(func(string) error { <-late; return nil })
			err := says(agent.RemoveContainer, &katav1.RemoveContainerRequest{ContainerId: "c1", Timeout: 1})(t, r)
			close(late)
			// The removal continues: the next call joins it, or finds it done.
			_, again := katav1.NewAgentServiceClient(r.dial(t)).RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "c1"})
			if _, lerr := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1"); !errdefs.IsNotFound(lerr) {
				t.Errorf("the container is still there: %v, %v", again, lerr)
			}
			return err
		}},
		{"UpdateContainer", "limits", nil, func(t *testing.T, r *rig) error {
			err := says(agent.UpdateContainer, &katav1.UpdateContainerRequest{ContainerId: "c1", Resources: limits})(t, r)
			ct, lerr := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1")
			if lerr != nil {
				return lerr
			}
			if res, rerr := r.node.Cgroups.Resources(t.Context(), ct.Cgroup); rerr != nil || res.Memory == nil || *res.Memory.Limit != 1<<26 {
				t.Errorf("the limits are %v, %v", res, rerr)
			}
			return err
		}},
		{"UpdateContainer", "nothing", refusing, says(agent.UpdateContainer, &katav1.UpdateContainerRequest{ContainerId: "c1"})},
		{"UpdateContainer", "no container", nil, says(agent.UpdateContainer, &katav1.UpdateContainerRequest{ContainerId: "none", Resources: limits})},
		{"UpdateContainer", "a kernel that refuses", refusing, says(agent.UpdateContainer, &katav1.UpdateContainerRequest{ContainerId: "c1", Resources: limits})},
		{"StatsContainer", "a container", nil, func(t *testing.T, r *rig) error {
			ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1")
			if err != nil {
				return err
			}
			r.node.Cgroups.SetStats(ct.Cgroup, core.Stats{Pids: core.PidsStats{Current: core.Value{N: 7, OK: true}}})
			return says(agent.StatsContainer, &katav1.StatsContainerRequest{ContainerId: "c1"}, "current:7")(t, r)
		}},
		{"StatsContainer", "no container", nil, says(agent.StatsContainer, &katav1.StatsContainerRequest{ContainerId: "none"})},
		{"StatsContainer", "a kernel that refuses", refusing, says(agent.StatsContainer, &katav1.StatsContainerRequest{ContainerId: "c1"})},
		{"PauseContainer", "a container", nil, says(agent.PauseContainer, &katav1.PauseContainerRequest{ContainerId: "c1"})},
		{"PauseContainer", "no container", nil, says(agent.PauseContainer, &katav1.PauseContainerRequest{ContainerId: "none"})},
		{"PauseContainer", "a paused container", paused, says(agent.PauseContainer, &katav1.PauseContainerRequest{ContainerId: "c1"})},
		{"ResumeContainer", "a paused container", paused, says(agent.ResumeContainer, &katav1.ResumeContainerRequest{ContainerId: "c1"})},
		{"ResumeContainer", "no container", nil, says(agent.ResumeContainer, &katav1.ResumeContainerRequest{ContainerId: "none"})},
		{"ResumeContainer", "a container that is not paused", nil, says(agent.ResumeContainer, &katav1.ResumeContainerRequest{ContainerId: "c1"})},
		{"GetDiagnosticData", "a container's file", logging, says(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "c1"}, "head of /own/log")},
		{"GetDiagnosticData", "a container without a file", nil, says(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "c1"}, "")},
		{"GetDiagnosticData", "another kind", nil, says(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: "x", ContainerId: "c1"})},
		{"GetDiagnosticData", "no container", nil, says(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "none"})},
		{"GetDiagnosticData", "a machine that fails", func(t *testing.T, r *rig) { logging(t, r); r.machine.fails = errBroken }, says(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "c1"})},
	}
}

// logging is a sandbox with a container that writes why it ends.
func logging(t *testing.T, r *rig) {
	t.Helper()
	r.sandbox(t)
	spec := specOf(t, "cat")
	spec.Annotations = map[string]string{terminationPath: "/log"}
	spec.Mounts = []*katav1.Mount{{Destination: "/log", Type: "bind", Source: "/own/log"}}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: spec}); err != nil {
		t.Fatal(err)
	}
}

func networkTrials() []trial {
	link := func(change func(*katatypes.Interface)) *katav1.UpdateInterfaceRequest {
		l := &katatypes.Interface{Name: "eth0", IPAddresses: []*katatypes.IPAddress{{Address: "192.0.2.2", Mask: "24"}}}
		change(l)
		return &katav1.UpdateInterfaceRequest{Interface: l}
	}
	none := func(*katatypes.Interface) {}
	plugged := link(func(l *katatypes.Interface) { l.DevicePath = "02/00" })
	routes := func(to string) *katav1.UpdateRoutesRequest {
		return &katav1.UpdateRoutesRequest{Routes: &katav1.Routes{Routes: []*katatypes.Route{{Dest: to, Device: "eth0"}}}}
	}
	neighbours := func(address string) *katav1.AddARPNeighborsRequest {
		return &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{ARPNeighbors: []*katatypes.ARPNeighbor{{ToIPAddress: &katatypes.IPAddress{Address: address}, Device: "eth0"}}}}
	}
	return slices.Concat([]trial{
		{"UpdateInterface", "no link", bare, says(agent.UpdateInterface, &katav1.UpdateInterfaceRequest{})},
		{"UpdateInterface", "an address that is none", bare, says(agent.UpdateInterface, link(func(l *katatypes.Interface) { l.IPAddresses[0].Address = "x" }))},
		{"UpdateInterface", "a mask that is none", bare, says(agent.UpdateInterface, link(func(l *katatypes.Interface) { l.IPAddresses[0].Mask = "33" }))},
		{"UpdateInterface", "a link that there is not", broken(errNotThere), says(agent.UpdateInterface, link(none))},
		{"UpdateInterface", "a link of a device", boxed, says(agent.UpdateInterface, plugged, "eth0", "link eth0 [192.0.2.2/24] of device 02/00")},
		{"UpdateInterface", "a device that is not plugged in", broken(errNotThere), says(agent.UpdateInterface, plugged)},
		{"UpdateRoutes", "no routes", bare, says(agent.UpdateRoutes, &katav1.UpdateRoutesRequest{})},
		{"UpdateRoutes", "a destination that is none", bare, says(agent.UpdateRoutes, routes("x"))},
		{"AddARPNeighbors", "no neighbours", bare, says(agent.AddARPNeighbors, &katav1.AddARPNeighborsRequest{})},
		{"AddARPNeighbors", "an address that is none", bare, says(agent.AddARPNeighbors, neighbours("x"))},
	},
		of("UpdateInterface", "a link", agent.UpdateInterface, link(none), "eth0", "link eth0 [192.0.2.2/24]"),
		of("ListInterfaces", "the links", agent.ListInterfaces, &katav1.ListInterfacesRequest{}, "192.0.2.2"),
		of("UpdateRoutes", "a route", agent.UpdateRoutes, routes("198.51.100.0/24"), "192.0.2.0/24", "1 routes, by eth0; routes"),
		of("ListRoutes", "the routes", agent.ListRoutes, &katav1.ListRoutesRequest{}, "192.0.2.0/24"),
		of("AddARPNeighbors", "a neighbour", agent.AddARPNeighbors, neighbours("192.0.2.9"), "", "1 neighbours, 192.0.2.9"),
	)
}

func hardwareTrials() []trial {
	resize := &katav1.ResizeVolumeRequest{VolumeGuestPath: "/v", Size: 9}
	return slices.Concat([]trial{
		{"GetMetrics", "the figures", bare, says(agent.GetMetrics, &katav1.GetMetricsRequest{}, "metrics")},
		{"GetMetrics", "a fault of the agent's", broken(errBroken), func(t *testing.T, r *rig) error {
			err := says(agent.GetMetrics, &katav1.GetMetricsRequest{})(t, r)
			if _, herr := katav1.NewHealthClient(r.dial(t)).Check(t.Context(), &katav1.CheckRequest{}); herr != nil {
				t.Errorf("after it: %v", herr)
			}
			return err
		}},
		{"ResizeVolume", "a volume that cannot grow", broken(errdefs.ErrNotImplemented), says(agent.ResizeVolume, resize)},
		{"UpdateEphemeralMounts", "a group that is too large", boxed, says(agent.UpdateEphemeralMounts, &katav1.UpdateEphemeralMountsRequest{Storages: []*katav1.Storage{{FsGroup: &katav1.FSGroup{GroupId: 1 << 31}}}})},
	},
		of("GetIPTables", "the rules", agent.GetIPTables, &katav1.GetIPTablesRequest{IsIpv6: true}, "rules", "filter true"),
		of("SetIPTables", "rules", agent.SetIPTables, &katav1.SetIPTablesRequest{Data: []byte("*nat")}, "said", "filter false *nat"),
		of("OnlineCPUMem", "processors and memory", agent.OnlineCPUMem, &katav1.OnlineCPUMemRequest{NbCpus: 3}, "", "cpus 3; memory"),
		of("MemHotplugByProbe", "an address", agent.MemHotplugByProbe, &katav1.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{16}}, "", "probe [10]"),
		of("SetGuestDateTime", "a time", agent.SetGuestDateTime, &katav1.SetGuestDateTimeRequest{Sec: 5, Usec: 7}, "", "clock 5.000007"),
		of("ReseedRandomDev", "data", agent.ReseedRandomDev, &katav1.ReseedRandomDevRequest{Data: []byte("dice")}, "", "entropy dice"),
		of("CopyFile", "a file", agent.CopyFile, &katav1.CopyFileRequest{Path: "/f", Data: []byte("text")}, "", "copy /f text"),
		of("AddSwap", "a disk", agent.AddSwap, &katav1.AddSwapRequest{PCIPath: []uint32{2, 31}}, "", "disk 02/1f; swap /dev/vdb"),
		of("AddSwapPath", "a path", agent.AddSwapPath, &katav1.AddSwapPathRequest{Path: "/swap"}, "", "swap /swap"),
		of("GetVolumeStats", "a volume", agent.GetVolumeStats, &katav1.VolumeStatsRequest{VolumeGuestPath: "/v"}, "total:5", "usage /v"),
		of("ResizeVolume", "a volume", agent.ResizeVolume, resize, "", "resize /v 9"),
		of("UpdateEphemeralMounts", "a storage", agent.UpdateEphemeralMounts, &katav1.UpdateEphemeralMountsRequest{Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/e", Options: []string{"size=5"}}}}, "", `remount /e ["size=5"]`),
		of("RemoveStaleVirtiofsShareMounts", "what is mounted", agent.RemoveStaleVirtiofsShareMounts, &katav1.RemoveStaleVirtiofsShareMountsRequest{}, "", "stale"),
	)
}
