package cri

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

func podRequest(change ...func(*v1.PodSandboxConfig)) *v1.RunPodSandboxRequest {
	cfg := &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1", Attempt: 2},
		Hostname: "web-0", LogDirectory: "/var/log/pods/default_web_u1", Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{"note": "kept"}, Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{}},
	}
	for _, c := range change {
		c(cfg)
	}
	return &v1.RunPodSandboxRequest{Config: cfg}
}

func withNamespaces(o *v1.NamespaceOption) func(*v1.PodSandboxConfig) {
	return func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions = o }
}

func TestASandboxIsTranslatedWhole(t *testing.T) {
	req := podRequest(func(c *v1.PodSandboxConfig) {
		c.DnsConfig = &v1.DNSConfig{Servers: []string{"10.0.0.2"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}}
		c.PortMappings = []*v1.PortMapping{
			{ContainerPort: 80},
			{ContainerPort: 80, HostPort: 8080, HostIp: "0.0.0.0"},
			{ContainerPort: 53, HostPort: 53, Protocol: v1.Protocol_UDP, HostIp: "::ffff:127.0.0.1"},
			{ContainerPort: 9, HostPort: 9, Protocol: v1.Protocol_SCTP, HostIp: "::1"},
		}
		c.Linux.CgroupParent = "/kubepods/burstable/podu1"
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1", "net/ipv4/conf/eth0.1/forwarding": "1"}
		c.Annotations["kubernetes.io/ingress-bandwidth"] = "10M"
		c.Annotations["kubernetes.io/egress-bandwidth"] = "1Mi"
	}, withNamespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}))
	req.RuntimeHandler = "fast"
	face := DefaultConfig()
	face.Handlers["fast"] = "native"
	got, err := sandboxConfig(face, req)
	if err != nil {
		t.Fatal(err)
	}
	want := core.SandboxConfig{
		Key: "web_default_u1_2", Labels: map[string]string{"app": "web"}, Runtime: "native", Hostname: "web-0",
		Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}, IPC: core.Namespace{Mode: core.Shared}, UTS: core.Namespace{Mode: core.Shared}},
		Network: core.NetworkConfig{
			DNS: core.DNS{Servers: []string{"10.0.0.2"}, Searches: []string{"svc.local"}, Options: []string{"ndots:5"}},
			Ports: []core.Port{
				{Proto: "tcp", Host: 8080, Container: 80},
				{Proto: "udp", Host: 53, Container: 53, HostIP: netip.MustParseAddr("127.0.0.1")},
				{Proto: "sctp", Host: 9, Container: 9, HostIP: netip.MustParseAddr("::1")},
			},
			Args:        map[string]string{"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web", "K8S_POD_UID": "u1"},
			IngressRate: 10_000_000, EgressRate: 1 << 20,
		},
		Cgroup:  core.Cgroup{Parent: "/kubepods/burstable/podu1"},
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0/1.forwarding": "1"},
	}
	opts := []cmp.Option{cmpopts.IgnoreFields(core.SandboxConfig{}, "Data"), cmpopts.EquateComparable(netip.Addr{})}
	if d := cmp.Diff(want, got, opts...); d != "" {
		t.Errorf("sandbox (-want +got):\n%s", d)
	}
	r, err := podOf(&core.Sandbox{Meta: core.Meta{Data: got.Data, Labels: got.Labels}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(req, r.Config, protocmp.Transform()); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
}

func TestNamespaceModes(t *testing.T) {
	ns := func(m core.NamespaceMode) core.Namespace { return core.Namespace{Mode: m} }
	ids := []*v1.IDMapping{{HostId: 65536, Length: 65536}}
	for name, tt := range map[string]struct {
		o    *v1.NamespaceOption
		want core.Namespaces
		bad  bool
	}{
		"nothing said": {nil, core.Namespaces{Net: ns(core.Shared), IPC: ns(core.Shared), UTS: ns(core.Shared), PID: ns(core.Shared)}, false},
		"all the node's": {
			&v1.NamespaceOption{Network: v1.NamespaceMode_NODE, Ipc: v1.NamespaceMode_NODE, Pid: v1.NamespaceMode_NODE},
			core.Namespaces{Net: ns(core.Host), IPC: ns(core.Host), UTS: ns(core.Host), PID: ns(core.Host)},
			false,
		},
		"each its own": {
			&v1.NamespaceOption{Ipc: v1.NamespaceMode_CONTAINER, Pid: v1.NamespaceMode_CONTAINER},
			core.Namespaces{Net: ns(core.Shared), UTS: ns(core.Shared)},
			false,
		},
		"users": {
			&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER, UsernsOptions: &v1.UserNamespace{Uids: ids, Gids: ids}},
			core.Namespaces{Net: ns(core.Shared), IPC: ns(core.Shared), UTS: ns(core.Shared), User: ns(core.Shared)},
			false,
		},
		"the node's users": {
			&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Mode: v1.NamespaceMode_NODE}},
			core.Namespaces{Net: ns(core.Shared), IPC: ns(core.Shared), UTS: ns(core.Shared), PID: ns(core.Shared)},
			false,
		},
		"own network":              {&v1.NamespaceOption{Network: v1.NamespaceMode_CONTAINER}, core.Namespaces{}, true},
		"target":                   {&v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET}, core.Namespaces{}, true},
		"unknown":                  {&v1.NamespaceOption{Pid: 77}, core.Namespaces{}, true},
		"users of each container":  {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Mode: v1.NamespaceMode_CONTAINER, Uids: ids, Gids: ids}}, core.Namespaces{}, true},
		"users of another":         {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Mode: v1.NamespaceMode_TARGET, Uids: ids, Gids: ids}}, core.Namespaces{}, true},
		"node users with mappings": {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Mode: v1.NamespaceMode_NODE, Uids: ids}}, core.Namespaces{}, true},
		"users, no mapping":        {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{}}, core.Namespaces{}, true},
		"two mappings":             {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Uids: append(ids, ids...), Gids: ids}}, core.Namespaces{}, true},
		"root is not mapped":       {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Uids: []*v1.IDMapping{{ContainerId: 1, HostId: 1, Length: 9}}, Gids: ids}}, core.Namespaces{}, true},
		"empty mapping":            {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Uids: []*v1.IDMapping{{}}, Gids: ids}}, core.Namespaces{}, true},
		"mapping past the end":     {&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Uids: []*v1.IDMapping{{HostId: 9, Length: math.MaxUint32}}, Gids: ids}}, core.Namespaces{}, true},
		"users on the node's net":  {&v1.NamespaceOption{Network: v1.NamespaceMode_NODE, UsernsOptions: &v1.UserNamespace{Uids: ids, Gids: ids}}, core.Namespaces{Net: ns(core.Host), UTS: ns(core.Host), IPC: ns(core.Shared), PID: ns(core.Shared), User: ns(core.Shared)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sandboxConfig(DefaultConfig(), podRequest(withNamespaces(tt.o), func(c *v1.PodSandboxConfig) {
				if tt.o.GetNetwork() == v1.NamespaceMode_NODE {
					c.Hostname = ""
				}
			}))
			if tt.bad {
				if !errdefs.IsInvalidArgument(err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got.Namespaces); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if got.Namespaces.User.Mode == core.Shared {
				want := []specs.LinuxIDMapping{{HostID: 65536, Size: 65536}}
				if d := cmp.Diff([][]specs.LinuxIDMapping{want, want}, [][]specs.LinuxIDMapping{got.UIDs, got.GIDs}); d != "" {
					t.Errorf("mappings (-want +got):\n%s", d)
				}
			}
		})
	}
}

func TestBadSandboxesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*v1.PodSandboxConfig){
		"no metadata":         func(c *v1.PodSandboxConfig) { c.Metadata = nil },
		"no name":             func(c *v1.PodSandboxConfig) { c.Metadata.Name = "" },
		"metadata too long":   func(c *v1.PodSandboxConfig) { c.Metadata.Name = strings.Repeat("x", core.MaxKey) },
		"windows":             func(c *v1.PodSandboxConfig) { c.Linux, c.Windows = nil, &v1.WindowsPodSandboxConfig{} },
		"long host name":      func(c *v1.PodSandboxConfig) { c.Hostname = strings.Repeat("x", 65) },
		"host name with line": func(c *v1.PodSandboxConfig) { c.Hostname = "a\nb" },
		"host name of the node's network": func(c *v1.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}
		},
		"relative logs":     func(c *v1.PodSandboxConfig) { c.LogDirectory = "logs" },
		"dns line":          func(c *v1.PodSandboxConfig) { c.DnsConfig = &v1.DNSConfig{Options: []string{"a\nnameserver 6.6.6.6"}} },
		"port 70000":        func(c *v1.PodSandboxConfig) { c.PortMappings = []*v1.PortMapping{{HostPort: 70000, ContainerPort: 1}} },
		"port -1":           func(c *v1.PodSandboxConfig) { c.PortMappings = []*v1.PortMapping{{HostPort: -1, ContainerPort: 1}} },
		"no container port": func(c *v1.PodSandboxConfig) { c.PortMappings = []*v1.PortMapping{{HostPort: 1}} },
		"odd protocol": func(c *v1.PodSandboxConfig) {
			c.PortMappings = []*v1.PortMapping{{HostPort: 1, ContainerPort: 1, Protocol: 9}}
		},
		"odd host ip": func(c *v1.PodSandboxConfig) {
			c.PortMappings = []*v1.PortMapping{{HostPort: 1, ContainerPort: 1, HostIp: "host"}}
		},
		"port twice": func(c *v1.PodSandboxConfig) {
			c.PortMappings = []*v1.PortMapping{{HostPort: 1, ContainerPort: 1}, {HostPort: 1, ContainerPort: 2, HostIp: "0.0.0.0"}}
		},
		"sysctl of the node's net": func(c *v1.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"net.core.somaxconn": "1"}
			c.Linux.SecurityContext.NamespaceOptions = &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}
		},
		"sysctl of the node's ipc": func(c *v1.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel/shmmax": "1"}
			c.Linux.SecurityContext.NamespaceOptions = &v1.NamespaceOption{Ipc: v1.NamespaceMode_NODE}
		},
		"sysctl path":        func(c *v1.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"net/../kernel/panic": "1"} },
		"cgroup parent":      func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = "/kubepods/../../x" },
		"bandwidth":          func(c *v1.PodSandboxConfig) { c.Annotations["kubernetes.io/egress-bandwidth"] = "fast" },
		"bandwidth too much": func(c *v1.PodSandboxConfig) { c.Annotations["kubernetes.io/egress-bandwidth"] = "9E" },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := sandboxConfig(DefaultConfig(), podRequest(change)); !errdefs.IsInvalidArgument(err) {
				t.Errorf("error %v", err)
			}
		})
	}
	for _, req := range []*v1.RunPodSandboxRequest{nil, {}, {Config: &v1.PodSandboxConfig{}}} {
		if _, err := sandboxConfig(DefaultConfig(), req); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: error %v", req, err)
		}
	}
}

func TestCgroupParents(t *testing.T) {
	cgroupfs, systemd := DefaultConfig(), DefaultConfig()
	systemd.CgroupDriver = "systemd"
	own := DefaultConfig()
	own.SandboxCgroup = "/pods"
	for _, tt := range []struct {
		face   Config
		parent string
		want   string
		bad    bool
	}{
		{cgroupfs, "", "", false},
		{cgroupfs, "/kubepods/podx", "/kubepods/podx", false},
		{own, "", "/pods", false},
		{own, "/kubepods", "/kubepods", false},
		{systemd, "", "", false},
		{systemd, "kubepods-podx.slice", "kubepods-podx.slice", false},
		{systemd, "/kubepods.slice/kubepods-podx.slice", "kubepods-podx.slice", false},
		{systemd, "/kubepods/podx", "", true},
	} {
		got, err := cgroupOf(tt.face, tt.parent)
		if (err != nil) != tt.bad || got.Parent != tt.want {
			t.Errorf("%s %q: %q, %v", tt.face.CgroupDriver, tt.parent, got.Parent, err)
		}
	}
}

func TestHostNetworkLeavesNothingToSetUp(t *testing.T) {
	got, err := sandboxConfig(DefaultConfig(), podRequest(func(c *v1.PodSandboxConfig) {
		c.PortMappings, c.Hostname = []*v1.PortMapping{{HostPort: 80, ContainerPort: 80}}, ""
	}, withNamespaces(&v1.NamespaceOption{Network: v1.NamespaceMode_NODE})))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Network.Ports) != 0 || got.Hostname != "" {
		t.Errorf("ports %v, host name %q", got.Network.Ports, got.Hostname)
	}
}

func TestKeysTellMetadataApart(t *testing.T) {
	a := convert.SandboxKey(&v1.PodSandboxMetadata{Name: "a_b", Namespace: "c"})
	b := convert.SandboxKey(&v1.PodSandboxMetadata{Name: "a", Namespace: "b_c"})
	if a == b {
		t.Errorf("both are %q", a)
	}
	for _, m := range []*v1.PodSandboxMetadata{{Name: "a_b%\x00c", Namespace: "%5F", Uid: "_", Attempt: math.MaxUint32}, {}} {
		if d := cmp.Diff(m, convert.SandboxMetadata(convert.SandboxKey(m)), protocmp.Transform()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	if m := convert.SandboxMetadata("no key"); m != nil {
		t.Errorf("metadata %v", m)
	}
}

func TestLogPathsStayBelowTheirDirectory(t *testing.T) {
	for _, tt := range []struct {
		dir, file, want string
		bad             bool
	}{
		{"/var/log/pods/p", "web/0.log", "/var/log/pods/p/web/0.log", false},
		{"/var/log/pods/p", "./web//0.log", "/var/log/pods/p/web/0.log", false},
		{"", "0.log", "", false},
		{"/logs", "", "", false},
		{"logs", "0.log", "", true},
		{"/logs", "/etc/passwd", "", true},
		{"/logs", "../x", "", true},
		{"/logs", "a/../../x", "", true},
		{"/logs", ".", "", true},
		{"/logs", "a\x00b", "", true},
	} {
		got, err := logPath(tt.dir, tt.file)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q %q: %q, %v", tt.dir, tt.file, got, err)
		}
	}
}

func TestQuantities(t *testing.T) {
	for s, want := range map[string]uint64{"1k": 1000, "10M": 10_000_000, "1.5G": 1_500_000_000, "1Ki": 1024, "2e6": 2_000_000, "1000000": 1_000_000, "1500m": 2, "0": 0} {
		if got, ok := convert.Quantity(s); !ok || got != want {
			t.Errorf("%s: %d, %v; want %d", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "M", "-1", "1 M", "1MB", "0x10", "1_0", "1e999", "Inf", strings.Repeat("9", 99)} {
		if got, ok := convert.Quantity(s); ok {
			t.Errorf("%q: %d", s, got)
		}
	}
}

func TestGraceNeverOverflows(t *testing.T) {
	for s, want := range map[int64]time.Duration{-5: 0, 0: 0, 30: 30 * time.Second, math.MaxInt64: math.MaxInt32 * time.Second} {
		if got := grace(s); got != want {
			t.Errorf("%d: %s", s, got)
		}
	}
}

func TestSignals(t *testing.T) {
	for s := range v1.Signal_name {
		name, err := convert.SignalName(v1.Signal(s))
		if err != nil {
			t.Errorf("%s: %v", v1.Signal(s), err)
			continue
		}
		if s == 0 {
			if name != "" {
				t.Errorf("default is %q", name)
			}
			continue
		}
		if back := convert.StopSignal(name); convert.SignalNumber(back) != convert.SignalNumber(v1.Signal(s)) {
			t.Errorf("%s is %s and back %s", v1.Signal(s), name, back)
		}
	}
	if _, err := convert.SignalName(4711); !errdefs.IsInvalidArgument(err) {
		t.Errorf("signal 4711: %v", err)
	}
	for in, want := range map[string]v1.Signal{
		"": v1.Signal_SIGNAL_SIGTERM, "SIGQUIT": v1.Signal_SIGNAL_SIGQUIT, "quit": v1.Signal_SIGNAL_SIGQUIT, "9": v1.Signal_SIGNAL_SIGKILL,
		"SIGRTMIN+3": v1.Signal_SIGNAL_SIGRTMINPLUS3, "37": v1.Signal_SIGNAL_SIGRTMINPLUS3, "RTMAX-1": v1.Signal_SIGNAL_SIGRTMAXMINUS1,
		"nonsense": v1.Signal_SIGNAL_SIGTERM, "999": v1.Signal_SIGNAL_SIGTERM,
	} {
		if got := convert.StopSignal(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
