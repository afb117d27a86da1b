package kata

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// asked makes a call, and returns its answer as text.
func asked[Q, A proto.Message](ctx context.Context, call func(context.Context, Q) (A, error), req Q) func() (string, error) {
	return func() (string, error) {
		a, err := call(ctx, req)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(a), nil
	}
}

// TestTheMachineIsTold: each call's request to the machine, and its code when the machine fails.
func TestTheMachineIsTold(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	for _, tt := range []struct {
		call func() (string, error)
		told string
		says string
	}{
		{asked(ctx, r.SetGuestDateTime, &katav1.SetGuestDateTimeRequest{Sec: 5, Usec: 7}), "clock 5.000007", ""},
		{asked(ctx, r.ReseedRandomDev, &katav1.ReseedRandomDevRequest{Data: []byte("dice")}), "entropy dice", ""},
		{asked(ctx, r.OnlineCPUMem, &katav1.OnlineCPUMemRequest{NbCpus: 3, CpuOnly: true}), "cpus 3", ""},
		{asked(ctx, r.OnlineCPUMem, &katav1.OnlineCPUMemRequest{NbCpus: 3}), "cpus 3; memory", ""},
		{asked(ctx, r.MemHotplugByProbe, &katav1.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{0x10, 0x20}}), "probe [10 20]", ""},
		{asked(ctx, r.AddSwap, &katav1.AddSwapRequest{PCIPath: []uint32{2, 0x1f}}), "disk 02/1f; swap /dev/vdb", ""},
		{asked(ctx, r.AddSwapPath, &katav1.AddSwapPathRequest{Path: "/swap"}), "swap /swap", ""},
		{asked(ctx, r.GetIPTables, &katav1.GetIPTablesRequest{}), "filter false", `data:"rules"`},
		{asked(ctx, r.GetIPTables, &katav1.GetIPTablesRequest{IsIpv6: true}), "filter true", `data:"rules"`},
		{asked(ctx, r.SetIPTables, &katav1.SetIPTablesRequest{IsIpv6: true, Data: []byte("*nat")}), "filter true *nat", `data:"said"`},
		{asked(ctx, r.ResizeVolume, &katav1.ResizeVolumeRequest{VolumeGuestPath: "/v", Size: 9}), "resize /v 9", ""},
		{asked(ctx, r.RemoveStaleVirtiofsShareMounts, &katav1.RemoveStaleVirtiofsShareMountsRequest{}), "stale", ""},
		{asked(ctx, r.UpdateEphemeralMounts, &katav1.UpdateEphemeralMountsRequest{Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/e", Options: []string{"size=5"}}}}), `remount /e ["size=5"]`, ""},
	} {
		r.machine.heard()
		r.machine.fails = nil
		said, err := tt.call()
		if got := r.machine.heard(); err != nil || got != tt.told || said != tt.says {
			t.Errorf("%q, %v: the machine was told %q, want %q", said, err, got, tt.told)
		}
		r.machine.fails = errors.New("broken")
		if got := code(tt.call()); got != codes.Internal {
			t.Errorf("%s of a machine that cannot: %v", tt.told, got)
		}
	}
	r.machine.mends()
	if a, err := r.GetMetrics(ctx, &katav1.GetMetricsRequest{}); err != nil || a.GetMetrics() != "metrics" {
		t.Errorf("GetMetrics: %v, %v", a, err)
	}
	r.machine.fails = errdefs.ErrNotImplemented
	if got := code(r.ResizeVolume(ctx, &katav1.ResizeVolumeRequest{})); got != codes.Unimplemented {
		t.Errorf("ResizeVolume of what cannot grow: %v", got)
	}
	r.machine.fails = nil
}

// TestTheSandboxsOwnThings: modules, name servers and hooks come with the sandbox and go
// with it.
func TestTheSandboxsOwnThings(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	req := &katav1.CreateSandboxRequest{
		Dns: []string{"nameserver 192.0.2.1", "search x"}, GuestHookPath: "/hooks", KernelModules: []*katav1.KernelModule{{Name: "dummy", Parameters: []string{"a=1"}}},
		Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/a/"}}, // as the shim names the host's share
	}
	r.machine.fails = errors.New("broken")
	if got := code(r.CreateSandbox(ctx, req)); got != codes.Internal {
		t.Errorf("a machine that cannot: %v", got)
	}
	if len(r.machine.mounted) > 0 {
		t.Errorf("a refused sandbox left %v", r.machine.mounted)
	}
	r.machine.fails = nil
	r.machine.heard()
	if _, err := r.CreateSandbox(ctx, req); err != nil {
		t.Fatal(err)
	}
	if got := r.machine.heard(); got != `module dummy ["a=1"]; hooks /hooks; dns ["nameserver 192.0.2.1" "search x"]` {
		t.Errorf("the machine was told %s", got)
	}
	spec := specOf(t, "cat")
	spec.Hooks = &katav1.Hooks{Prestart: []*katav1.Hook{{Path: "/own"}}}
	spec.Annotations = map[string]string{terminationPath: "/dev/termination-log"}
	spec.Mounts = []*katav1.Mount{{Destination: "/dev/termination-log", Type: "bind", Source: "/shared/log"}}
	shared := []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/shared", Shared: true}, {Driver: "ephemeral", MountPoint: "/own"}}
	if _, err := r.CreateContainer(ctx, &katav1.CreateContainerRequest{ContainerId: "c1", OCI: spec, Storages: shared}); err != nil {
		t.Fatal(err)
	}
	if a, err := r.GetDiagnosticData(ctx, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "c1"}); err != nil || a.GetData() != "head of /shared/log" {
		t.Errorf("GetDiagnosticData: %v, %v", a, err)
	}
	if _, err := r.RemoveContainer(ctx, &katav1.RemoveContainerRequest{ContainerId: "c1"}); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(r.machine.mounted); got != "[/a /shared]" {
		t.Errorf("after the container %s are mounted", got)
	}
	r.machine.heard()
	if _, err := r.DestroySandbox(ctx, &katav1.DestroySandboxRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := r.machine.heard(); got != "no dns" || len(r.machine.mounted) > 0 {
		t.Errorf("at the end the machine was told %q, and has %v", got, r.machine.mounted)
	}
}

// TestBlockedRequests: a list of names in the options decides which calls are answered.
func TestBlockedRequests(t *testing.T) {
	if err := (Requests{Deny: []string{"ExecProcess"}}).Validate(); err == nil {
		t.Error("the name of a call is taken for that of a request")
	}
	ctx := t.Context()
	r := newRigThatAllows(t, Requests{Deny: []string{"ExecProcessRequest", "ReadStreamRequest"}}, nil)
	r.sandbox(t)
	r.run(t, "c1", "cat")
	if got := code(r.ExecProcess(ctx, &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1"})); got != codes.PermissionDenied {
		t.Errorf("exec: %v", got)
	}
	r.reads(t, "c1", "secret", "")
	few := newRigThatAllows(t, Requests{Allow: []string{"GuestDetailsRequest"}}, nil)
	if _, err := few.GetGuestDetails(ctx, &katav1.GuestDetailsRequest{}); err != nil {
		t.Errorf("the one that is allowed: %v", err)
	}
	if got := code(few.CreateSandbox(ctx, &katav1.CreateSandboxRequest{})); got != codes.PermissionDenied {
		t.Errorf("another one: %v", got)
	}
	if _, err := katav1.NewHealthClient(few.dial(t)).Check(ctx, &katav1.CheckRequest{}); err != nil {
		t.Errorf("Check: %v", err)
	}
}
