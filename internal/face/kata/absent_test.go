package kata

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/guest"
)

// absent are the rows of docs/guide/kata-fields.md, by the first field of each, that a check shows.
var absent = []struct {
	rows  string
	check func(*testing.T, *rig)
}{
	{"CreateContainerRequest.container_id CreateContainerRequest.OCI Spec.Process Spec.Root Process.Args Root.Path", refusedCreates},
	{"StartContainerRequest.container_id ExecProcessRequest.container_id UpdateContainerRequest.container_id WriteStreamRequest.container_id CloseStdinRequest.container_id ExecProcessRequest.exec_id ExecProcessRequest.process", refusedProcesses},
	{"UpdateInterfaceRequest.interface Interface.name IPAddress.address Route.device ARPNeighbor.toIPAddress", refusedNetwork},
	{"MemAgentMemcgConfig.disabled MemAgentMemcgConfig.period_psi_percent_limit MemAgentCompactConfig.disabled MemAgentCompactConfig.compact_sec_max SharedMount.name Device.type SetPolicyRequest.policy", refusedOthers},
	{"SignalProcessRequest.exec_id CreateContainerRequest.exec_id SignalProcessRequest.signal UpdateContainerRequest.resources ReadStreamRequest.len TtyWinResizeRequest.row RemoveContainerRequest.timeout WriteStreamRequest.data WriteStreamRequest.exec_id", firstProcess},
	{"CreateContainerRequest.stdin_port ExecProcessRequest.stdin_port CreateContainerRequest.devices CreateContainerRequest.string_user CreateContainerRequest.sandbox_pidns Process.OOMScoreAdj Process.Capabilities Spec.Hostname", plainContainer},
	{"CreateSandboxRequest.hostname CreateSandboxRequest.dns CreateSandboxRequest.sandbox_pidns CreateSandboxRequest.sandbox_id", plainSandbox},
	{"Routes.Routes UpdateEphemeralMountsRequest.storages GetIPTablesRequest.is_ipv6 SetIPTablesRequest.data OnlineCPUMemRequest.wait OnlineCPUMemRequest.nb_cpus OnlineCPUMemRequest.cpu_only ReseedRandomDevRequest.data MemHotplugByProbeRequest.memHotplugProbeAddr SetGuestDateTimeRequest.Sec AddSwapRequest.PCIPath CopyFileRequest.file_size ResizeVolumeRequest.volume_guest_path KernelModule.parameters GuestDetailsRequest.mem_block_size CheckRequest.service", told},
	{"Interface.device Interface.IPAddresses Interface.mtu Interface.hwAddr Interface.devicePath Interface.raw_flags IPAddress.family Route.dest Route.gateway Route.source Route.scope Route.family Route.flags ARPNeighbor.state ARPNeighbor.lladdr ARPNeighbor.flags", network},
	{"Storage.driver_options Storage.options Storage.source Storage.fstype Storage.fs_group Storage.shared FSGroup.group_id FSGroup.group_change_policy Device.options", emptyStorages},
	{"Spec.Version Spec.Mounts Spec.Solaris Process.Terminal Process.ConsoleSize Process.User User.AdditionalGids User.Username Process.Env Process.Cwd LinuxCapabilities.Bounding Process.Rlimits POSIXRlimit.Hard Process.NoNewPrivileges Process.ApparmorProfile Mount.options Root.Readonly Hooks.Prestart Hook.Args Hook.Timeout Linux.UIDMappings Linux.Sysctl Linux.CgroupsPath Linux.Seccomp Linux.RootfsPropagation Linux.IntelRdt LinuxNamespace.Path LinuxDevice.Major LinuxDevice.UID LinuxResources.Devices LinuxResources.Pids LinuxMemory.Limit LinuxMemory.DisableOOMKiller LinuxCPU.Shares LinuxWeightDevice.Major LinuxWeightDevice.Weight LinuxThrottleDevice.Rate LinuxBlockIO.Weight LinuxBlockIO.ThrottleReadIOPSDevice LinuxDeviceCgroup.Allow LinuxDeviceCgroup.Type LinuxDeviceCgroup.Major LinuxDeviceCgroup.Minor LinuxDeviceCgroup.Access LinuxNetwork.ClassID LinuxHugepageLimit.Limit LinuxSeccomp.Architectures LinuxSyscall.Names LinuxSyscall.errnoret LinuxSyscall.Args LinuxSeccompArg.Index", emptySpec},
	{"LinuxDevice.FileMode", deviceMode},
	// test/kata/TestAbsentFieldsOfASpec has these, which only a runtime on a kernel refuses or gives a meaning.
	{"Spec.Linux Linux.Namespaces LinuxNamespace.Type LinuxDevice.Path Mount.destination Mount.source Hook.Path POSIXRlimit.Type Linux.Resources LinuxHugepageLimit.Pagesize LinuxSeccomp.DefaultAction LinuxSyscall.Action LinuxSeccompArg.Op", elsewhere("absent_root_test.go")},
	// Tests of internal/guest and test/kata check the machine.
	{"Storage.driver Device.id", elsewhere("storage_test.go", "devices_test.go", "containers_root_test.go")},
	{"CopyFileRequest.path CopyFileRequest.file_mode CopyFileRequest.dir_mode CopyFileRequest.uid KernelModule.name StringUser.uid GetDiagnosticDataRequest.log_type", elsewhere("files_test.go", "user_test.go", "codes_cases_test.go")},
}

// elsewhere names the files of further tests of a row.
func elsewhere(files ...string) func(*testing.T, *rig) {
	return func(t *testing.T, _ *rig) {
		for _, f := range files {
			if !slices.ContainsFunc([]string{"", "../../guest/", "../../../test/kata/"}, func(dir string) bool { _, err := os.Stat(dir + f); return err == nil }) {
				t.Errorf("there is no %s", f)
			}
		}
	}
}

// TestAbsentFields holds docs/guide/kata-fields.md against the protocol, and tries its rows.
func TestAbsentFields(t *testing.T) {
	b, err := os.ReadFile("../../../docs/guide/kata-fields.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, fields := map[string]bool{}, map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z][^|]*\.[^|]*) \| [^|]+ \| [^|]+ \|$`).FindAllStringSubmatch(string(b), -1) {
		message := ""
		for i, name := range strings.Split(row[1], ", ") {
			if m, f, ok := strings.Cut(name, "."); ok {
				message, name = m, f
			}
			full := message + "." + name
			if fields[full] {
				t.Errorf("%s has two rows", full)
			}
			fields[full] = true
			if i == 0 {
				rows[full] = true
			}
		}
	}
	for _, f := range requestFields() {
		if !fields[f] {
			t.Errorf("%s has no row", f)
		}
		delete(fields, f)
	}
	for f := range fields {
		t.Errorf("there is no field %s", f)
	}
	for _, c := range absent {
		for row := range strings.FieldsSeq(c.rows) {
			if !rows[row] {
				t.Errorf("no row begins with %s, or it has two checks", row)
			}
			delete(rows, row)
		}
		t.Run(strings.Fields(c.rows)[0], func(t *testing.T) { c.check(t, newRig(t)) })
	}
	for row := range rows {
		t.Errorf("%s has no check", row)
	}
}

// requestFields names the fields of all requests and of the messages in them.
func requestFields() (list []string) {
	seen := map[protoreflect.FullName]bool{}
	var add func(m protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] || m.IsMapEntry() {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			list = append(list, string(m.Name())+"."+string(f.Name()))
			if f.Message() != nil {
				add(f.Message())
			}
		}
	}
	for _, f := range []protoreflect.FileDescriptor{katav1.File_kata_v1_agent_proto, katav1.File_kata_v1_health_proto} {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				add(f.Services().Get(i).Methods().Get(j).Input())
			}
		}
	}
	return list
}

// refused checks the codes of answers, by the absent field.
func refused(t *testing.T, want codes.Code, got map[string]codes.Code) {
	t.Helper()
	for what, c := range got {
		if c != want {
			t.Errorf("%s: %s, want %s", what, c, want)
		}
	}
}

func refusedCreates(t *testing.T, r *rig) {
	r.sandbox(t)
	create := func(id string, s *katav1.Spec) codes.Code {
		return code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: s}))
	}
	without := func(change func(*katav1.Spec)) *katav1.Spec {
		s := specOf(t, "cat")
		change(s)
		return s
	}
	refused(t, codes.Internal, map[string]codes.Code{
		"container_id": create("", specOf(t, "cat")),
		"OCI":          create("c1", nil),
		"Process":      create("c1", without(func(s *katav1.Spec) { s.Process = nil })),
		"Args":         create("c1", without(func(s *katav1.Spec) { s.Process.Args = nil })),
		"Root":         create("c1", without(func(s *katav1.Spec) { s.Root = nil })),
		"Path":         create("c1", without(func(s *katav1.Spec) { s.Root.Path = "" })),
	})
	if c := create("c1", specOf(t, "cat")); c != codes.OK {
		t.Errorf("with all of them: %s", c)
	}
}

func refusedProcesses(t *testing.T, r *rig) {
	r.sandbox(t)
	r.run(t, "c1", "cat")
	p := &katav1.Process{Args: []string{"cat"}}
	refused(t, codes.InvalidArgument, map[string]codes.Code{
		"signal": code(r.SignalProcess(t.Context(), &katav1.SignalProcessRequest{})),
		"wait":   code(r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{})),
		"update": code(r.UpdateContainer(t.Context(), &katav1.UpdateContainerRequest{})),
		"stats":  code(r.StatsContainer(t.Context(), &katav1.StatsContainerRequest{})),
		"pause":  code(r.PauseContainer(t.Context(), &katav1.PauseContainerRequest{})),
		"resume": code(r.ResumeContainer(t.Context(), &katav1.ResumeContainerRequest{})),
		"read":   code(r.ReadStdout(t.Context(), &katav1.ReadStreamRequest{Len: 1})),
		"close":  code(r.CloseStdin(t.Context(), &katav1.CloseStdinRequest{})),
		"resize": code(r.TtyWinResize(t.Context(), &katav1.TtyWinResizeRequest{})),
	})
	refused(t, codes.Internal, map[string]codes.Code{
		"start":               code(r.StartContainer(t.Context(), &katav1.StartContainerRequest{})),
		"remove":              code(r.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{})),
		"write":               code(r.WriteStdin(t.Context(), &katav1.WriteStreamRequest{})),
		"exec":                code(r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ExecId: "e1", Process: p})),
		"an exec's id":        code(r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", Process: p})),
		"an exec's process":   code(r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1"})),
		"a process's program": code(r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: &katav1.Process{}})),
	})
	if _, err := r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: p}); err != nil {
		t.Errorf("with all of them: %v", err)
	}
}

func refusedNetwork(t *testing.T, r *rig) {
	link := func(a *katatypes.IPAddress) codes.Code {
		return code(r.UpdateInterface(t.Context(), &katav1.UpdateInterfaceRequest{Interface: &katatypes.Interface{Name: "eth0", IPAddresses: []*katatypes.IPAddress{a}}}))
	}
	refused(t, codes.InvalidArgument, map[string]codes.Code{
		"interface": code(r.UpdateInterface(t.Context(), &katav1.UpdateInterfaceRequest{})),
		"routes":    code(r.UpdateRoutes(t.Context(), &katav1.UpdateRoutesRequest{})),
		"neighbors": code(r.AddARPNeighbors(t.Context(), &katav1.AddARPNeighborsRequest{})),
		"address":   link(&katatypes.IPAddress{Mask: "24"}),
		"mask":      link(&katatypes.IPAddress{Address: "192.0.2.1"}),
		"a neighbour's address": code(r.AddARPNeighbors(t.Context(), &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{
			ARPNeighbors: []*katatypes.ARPNeighbor{{Device: "eth0"}},
		}})),
	})
	if err := (&guest.Machine{}).UpdateLink(t.Context(), guest.Link{}); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("a link without a name: %v", err)
	}
}

func refusedOthers(t *testing.T, r *rig) {
	r.sandbox(t)
	refused(t, codes.Internal, map[string]codes.Code{
		"memcg":   code(r.MemAgentMemcgSet(t.Context(), &katav1.MemAgentMemcgConfig{})),
		"compact": code(r.MemAgentCompactSet(t.Context(), &katav1.MemAgentCompactConfig{})),
		"a device": code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{
			ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "cat"), Devices: []*katav1.Device{{Type: "blk", Id: "02/00"}},
		})),
	})
	refused(t, codes.Unimplemented, map[string]codes.Code{
		"shared mount": code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "cat"), SharedMounts: []*katav1.SharedMount{{}}})),
		"policy":       code(r.SetPolicy(t.Context(), &katav1.SetPolicyRequest{})),
	})
}

func firstProcess(t *testing.T, r *rig) {
	r.sandbox(t)
	s := specOf(t, "cat")
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", OCI: s}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]codes.Code{
		"start":               code(r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"})),
		"a signal":            code(r.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c1"})),
		"resources":           code(r.UpdateContainer(t.Context(), &katav1.UpdateContainerRequest{ContainerId: "c1"})),
		"standard input ends": code(r.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "c1"})),
	} {
		if c != codes.OK {
			t.Errorf("%s: %s", what, c)
		}
	}
	refused(t, codes.InvalidArgument, map[string]codes.Code{"a read of nothing": code(r.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1"}))})
	refused(t, codes.Unavailable, map[string]codes.Code{"a size without a terminal": code(r.TtyWinResize(t.Context(), &katav1.TtyWinResizeRequest{ContainerId: "c1"}))})
	if got, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1"}); err != nil || got.GetStatus() != 3 { // the end of cat
		t.Errorf("wait: %v, %v", got, err)
	}
	if _, err := r.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "c1"}); err != nil {
		t.Error(err)
	}
}

func plainContainer(t *testing.T, r *rig) {
	r.sandbox(t)
	r.run(t, "c1", "cat")
	ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	p := r.node.Supervisor.Process(core.Ref{Container: ct.ID, Process: core.Main}).Spec
	if p == nil || p.OOMScoreAdj == nil || *p.OOMScoreAdj != 0 || p.Capabilities != nil || p.User.UID != 0 || p.User.GID != 0 {
		t.Errorf("%+v", p)
	}
	r.machine.mu.Lock()
	defer r.machine.mu.Unlock()
	if len(r.machine.mounted) > 0 {
		t.Errorf("mounted: %v", r.machine.mounted)
	}
}

func plainSandbox(t *testing.T, r *rig) {
	if _, err := r.CreateSandbox(t.Context(), &katav1.CreateSandboxRequest{}); err != nil {
		t.Fatal(err)
	}
	sb, err := r.node.As(core.OwnerKata).SandboxByKey(t.Context(), sandboxKey)
	if err != nil {
		t.Fatal(err)
	}
	if own, err := os.Hostname(); err != nil || sb.Config.Hostname != own || sb.Config.Namespaces.PID.Mode == core.Shared || r.machine.heard() != "" {
		t.Errorf("%+v, %v", sb.Config, err)
	}
}

func told(t *testing.T, r *rig) {
	ctx := t.Context()
	for _, c := range []struct {
		what string
		call func() error
		want string
	}{
		{"UpdateEphemeralMounts", func() error { return failure(r.UpdateEphemeralMounts(ctx, &katav1.UpdateEphemeralMountsRequest{})) }, ""},
		{"GetIPTables", func() error { return failure(r.GetIPTables(ctx, &katav1.GetIPTablesRequest{})) }, "filter false"},
		{"SetIPTables", func() error { return failure(r.SetIPTables(ctx, &katav1.SetIPTablesRequest{})) }, "filter false "},
		{"OnlineCPUMem", func() error { return failure(r.OnlineCPUMem(ctx, &katav1.OnlineCPUMemRequest{})) }, "cpus 0; memory"},
		{"ReseedRandomDev", func() error { return failure(r.ReseedRandomDev(ctx, &katav1.ReseedRandomDevRequest{})) }, "entropy "},
		{"MemHotplugByProbe", func() error { return failure(r.MemHotplugByProbe(ctx, &katav1.MemHotplugByProbeRequest{})) }, "probe []"},
		{"SetGuestDateTime", func() error { return failure(r.SetGuestDateTime(ctx, &katav1.SetGuestDateTimeRequest{})) }, "clock 0.000000"},
		{"AddSwap", func() error { return failure(r.AddSwap(ctx, &katav1.AddSwapRequest{})) }, "disk ; swap /dev/vdb"},
		{"CopyFile", func() error { return failure(r.CopyFile(ctx, &katav1.CopyFileRequest{Path: "/a"})) }, "copy /a "},
		{"ResizeVolume", func() error { return failure(r.ResizeVolume(ctx, &katav1.ResizeVolumeRequest{})) }, "resize  0"},
		{"AddARPNeighbors", func() error {
			return failure(r.AddARPNeighbors(ctx, &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{ARPNeighbors: []*katatypes.ARPNeighbor{{ToIPAddress: &katatypes.IPAddress{Address: "192.0.2.1"}}}}}))
		}, "1 neighbours, 192.0.2.1"},
		{"CreateSandbox", func() error {
			return failure(r.CreateSandbox(ctx, &katav1.CreateSandboxRequest{KernelModules: []*katav1.KernelModule{{Name: "m"}}}))
		}, "module m []"},
	} {
		r.machine.heard()
		if err := c.call(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if got := r.machine.heard(); got != c.want {
			t.Errorf("%s: the machine was told %q, want %q", c.what, got, c.want)
		}
	}
	if d, err := r.GetGuestDetails(ctx, &katav1.GuestDetailsRequest{}); err != nil || d.GetMemBlockSizeBytes() != 0 || d.GetSupportMemHotplugProbe() || d.GetAgentDetails() == nil {
		t.Errorf("details: %v, %v", d, err)
	}
	if h, err := katav1.NewHealthClient(r.dial(t)).Check(ctx, &katav1.CheckRequest{}); err != nil || h.GetStatus() != katav1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
}

func failure[A any](_ A, err error) error { return err }

// network has the network's messages converted.
func network(t *testing.T, _ *rig) {
	if r, err := toRoute(&katatypes.Route{}); err != nil || r != (guest.Route{}) {
		t.Errorf("a route: %+v, %v", r, err)
	}
	if r, err := toRoute(&katatypes.Route{Gateway: "2001:db8::1"}); err != nil || !r.IPv6 || r.To.IsValid() {
		t.Errorf("a default route of IPv6 without a family: %+v, %v", r, err)
	}
}

func emptyStorages(t *testing.T, _ *rig) {
	list, err := storages([]*katav1.Storage{{}, {FsGroup: &katav1.FSGroup{}}})
	if err != nil || list[0].Group != nil || list[0].Shared || len(list[0].Options)+len(list[0].DriverOptions) > 0 || list[1].Group == nil || *list[1].Group != (guest.Group{}) {
		t.Errorf("%+v, %v", list, err)
	}
}

// emptySpec converts a spec that has each message once, and empty.
func emptySpec(t *testing.T, _ *rig) {
	got, err := toSpec(&katav1.Spec{
		Root: &katav1.Root{Path: "/r"}, Mounts: []*katav1.Mount{{}}, Hooks: &katav1.Hooks{Prestart: []*katav1.Hook{{}}}, Solaris: &katav1.Solaris{}, Windows: &katav1.Windows{},
		Process: &katav1.Process{Args: []string{"a"}, ConsoleSize: &katav1.Box{}, User: &katav1.User{}, Capabilities: &katav1.LinuxCapabilities{}, Rlimits: []*katav1.POSIXRlimit{{}}},
		Linux: &katav1.Linux{
			Namespaces: []*katav1.LinuxNamespace{{}}, Devices: []*katav1.LinuxDevice{{}}, IntelRdt: &katav1.LinuxIntelRdt{},
			Seccomp: &katav1.LinuxSeccomp{Syscalls: []*katav1.LinuxSyscall{{Args: []*katav1.LinuxSeccompArg{{}}}}},
			Resources: &katav1.LinuxResources{
				Devices: []*katav1.LinuxDeviceCgroup{{}, {Major: 8}}, Memory: &katav1.LinuxMemory{}, CPU: &katav1.LinuxCPU{}, Pids: &katav1.LinuxPids{}, Network: &katav1.LinuxNetwork{},
				HugepageLimits: []*katav1.LinuxHugepageLimit{{}}, BlockIO: &katav1.LinuxBlockIO{WeightDevice: []*katav1.LinuxWeightDevice{{}}, ThrottleReadBpsDevice: []*katav1.LinuxThrottleDevice{{}}},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"ociVersion":"","process":{"user":{"uid":0,"gid":0},"args":["a"],"cwd":"/","capabilities":{},"rlimits":[{"type":"","hard":0,"soft":0}],"oomScoreAdj":0},` +
		`"root":{"path":"/r"},"mounts":[{"destination":""}],"hooks":{"prestart":[{"path":"","timeout":10}]},"linux":{"resources":{"devices":[{"allow":false},{"allow":false,"major":8,"minor":0}],` +
		`"memory":{},"cpu":{},"blockIO":{"weightDevice":[{"major":0,"minor":0}],"throttleReadBpsDevice":[{"major":0,"minor":0,"rate":0}]},"hugepageLimits":[{"pageSize":"","limit":0}],"network":{}},` +
		`"namespaces":[{"type":""}],"devices":[{"path":"","type":"","major":0,"minor":0,"fileMode":0,"uid":0,"gid":0}],"seccomp":{"defaultAction":"","syscalls":[{"names":null,"action":"","args":[{"index":0,"value":0,"op":""}]}]},"intelRdt":{}}}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	bare, err := toSpec(&katav1.Spec{Root: &katav1.Root{Path: "/r"}, Process: &katav1.Process{Args: []string{"a"}}})
	if text, _ := json.Marshal(bare); err != nil || string(text) != `{"ociVersion":"","process":{"user":{"uid":0,"gid":0},"args":["a"],"cwd":"/","oomScoreAdj":0},"root":{"path":"/r"},"linux":{}}` {
		t.Errorf("%s, %v", text, err)
	}
	s := &specs.Spec{}
	addHooks(s, guest.Hooks{Poststop: []string{"/h"}})
	if h := s.Hooks.Poststop; len(h) != 1 || h[0].Timeout == nil || *h[0].Timeout != 10 {
		t.Errorf("a hook of the guest: %+v", h)
	}
}

// deviceMode: a device has the permissions of the machine's file, unless the request says others.
func deviceMode(t *testing.T, _ *rig) {
	l, err := toLinux(&katav1.Linux{Devices: []*katav1.LinuxDevice{{Path: "/dev/null", Type: "c"}, {Path: "/dev/none-there", Type: "c"}, {Path: "/dev/null", Type: "c", FileMode: 0o640}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []os.FileMode{0o666, 0, 0o640} {
		if got := *l.Devices[i].FileMode; got != want {
			t.Errorf("%s: %o, want %o", l.Devices[i].Path, got, want)
		}
	}
}
