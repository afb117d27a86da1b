package inspect

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// render executes templates on a document, as crictl does.
func render(t *testing.T, doc map[string]string, templates ...string) []string {
	t.Helper()
	var info any
	if err := json.Unmarshal([]byte(doc["info"]), &info); err != nil || len(doc) != 1 {
		t.Fatalf("%v, %v", doc, err)
	}
	var got []string
	for _, text := range templates {
		var out bytes.Buffer
		if err := template.Must(template.New("").Option("missingkey=error").Parse(text)).Execute(&out, map[string]any{"info": info}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		got = append(got, out.String())
	}
	return got
}

// wantRendered compares each template's output with the string after it.
func wantRendered(t *testing.T, doc map[string]string, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := render(t, doc, pairs[i]); got[0] != pairs[i+1] {
			t.Errorf("%s is %q, want %q", pairs[i], got[0], pairs[i+1])
		}
	}
}

func container() Container {
	return Container{
		Record: &core.Container{
			Meta: core.Meta{ID: "abc", Key: "k"}, Sandbox: "sb", State: core.ContainerRunning, Runtime: "native", Image: "sha256:x",
			Main: core.Process{Pid: 42, Args: []string{"sleep"}}, Cgroup: core.CgroupRef{Path: "/kubepods/p/abc"},
		},
		Config: &v1.ContainerConfig{
			Metadata: &v1.ContainerMetadata{Name: "app"}, Image: &v1.ImageSpec{Image: "sha256:x"}, Envs: []*v1.KeyValue{{Key: "TOKEN"}},
			Linux: &v1.LinuxContainerConfig{
				SecurityContext: &v1.LinuxContainerSecurityContext{Privileged: true},
				Resources:       &v1.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 1 << 20},
			},
		},
		Hostname: "web",
		Spec: &specs.Spec{
			Root: &specs.Root{Path: "/run/rootfs"}, Annotations: map[string]string{"io.kubernetes.cri.image-name": "redis:7"},
			Process: &specs.Process{User: specs.User{UID: 7}, Env: []string{"TOKEN=s3cret", "EMPTY", "PATH=/bin"}},
			Mounts:  []specs.Mount{{Destination: "/data", Source: "/srv", Type: "bind"}},
			Linux: &specs.Linux{
				CgroupsPath: "/kubepods/p/abc", Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/run/ns/net"}},
				Resources: &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(600))}, Memory: &specs.LinuxMemory{Limit: new(int64(1 << 20))}},
			},
		},
	}
}

// TestContainerKeys are the templates that scripts and agents have.
func TestContainerKeys(t *testing.T) {
	doc := container().Info()
	wantRendered(t, doc,
		`{{.info.pid}}`, "42",
		`{{.info.sandboxID}}`, "sb",
		`{{.info.removing}}`, "false",
		`{{.info.snapshotKey}} {{.info.snapshotter}}`, "abc overlayfs",
		`{{.info.runtimeType}} {{.info.runtimeOptions}}`, "native <no value>",
		`{{.info.privileged}} {{.info.config.linux.security_context.privileged}}`, "true true",
		`{{.info.config.metadata.name}} {{.info.config.image.image}}`, "app sha256:x",
		`{{.info.runtimeSpec.hostname}}`, "web",
		`{{.info.runtimeSpec.root.path}}`, "/run/rootfs",
		`{{.info.runtimeSpec.process.user.uid}}`, "7",
		`{{.info.runtimeSpec.process.env}}`, "[TOKEN= EMPTY= PATH=]",
		`{{.info.runtimeSpec.linux.cgroupsPath}}`, "/kubepods/p/abc",
		`{{.info.runtimeSpec.linux.resources.cpu.shares}} {{.info.runtimeSpec.linux.resources.memory.limit}}`, "600 1.048576e+06",
		`{{index .info.runtimeSpec.annotations "io.kubernetes.cri.image-name"}}`, "redis:7",
		`{{range .info.runtimeSpec.mounts}}{{if (eq .destination "/data")}}{{.source}}{{end}}{{end}}`, "/srv",
		`{{range .info.runtimeSpec.linux.namespaces}}{{if (eq .type "network")}}{{.path}}{{end}}{{end}}`, "/run/ns/net",
	)
	if strings.Contains(doc["info"], "s3cret") {
		t.Error("a variable's value is shown")
	}
	c := container()
	c.Spec, c.Record.Image, c.Record.Removing, c.Record.Main.Pid = nil, "", true, 0
	wantRendered(t, c.Info(), `{{.info.pid}} {{.info.removing}} [{{.info.snapshotKey}}] {{.info.runtimeSpec}}`, "0 true [] <no value>")
}

// TestUpdatedLimitsAreInTheSpec: those that were updated, and only those.
func TestUpdatedLimitsAreInTheSpec(t *testing.T) {
	const limits = `{{with .info.runtimeSpec.linux.resources}}{{.cpu}} {{.memory}}{{end}}`
	c := container()
	c.Resources = &v1.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 1 << 20}
	wantRendered(t, c.Info(), limits, "map[shares:600] map[limit:1.048576e+06]")
	c = container()
	c.Resources = &v1.LinuxContainerResources{
		CpuShares: 512, CpuQuota: 5000, CpuPeriod: 10000, CpusetCpus: "0-1", CpusetMems: "0", MemoryLimitInBytes: 64, MemorySwapLimitInBytes: 96,
	}
	wantRendered(t, c.Info(), limits, "map[cpus:0-1 mems:0 period:10000 quota:5000 shares:600] map[limit:64 swap:96]")
	c = container()
	c.Spec.Linux.Resources, c.Resources = nil, &v1.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: 1 << 20}
	wantRendered(t, c.Info(), limits, "map[shares:2] map[]")
}

func sandbox() Sandbox {
	ns := func(name string) core.Namespace { return core.Namespace{Mode: core.Shared, Path: "/run/ns/" + name} }
	return Sandbox{
		Record: &core.Sandbox{
			Meta: core.Meta{ID: "sb", Key: "default/web"}, State: core.SandboxReady, Cgroup: core.CgroupRef{Path: "/kubepods/p"},
			Config: core.SandboxConfig{
				Runtime: "native", Hostname: "web", Namespaces: core.Namespaces{Net: ns("net"), IPC: ns("ipc"), PID: core.Namespace{Mode: core.Host}},
				Sysctls: map[string]string{"net.core.somaxconn": "9"},
			},
			Network: core.NetworkStatus{
				Addrs:    []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")},
				Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, DNS: core.DNS{Servers: []string{"10.0.0.10"}},
				Interfaces: []core.Attachment{{
					Interface: "eth0", MAC: "02:00:00:00:00:01", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
				}},
			},
		},
		Request: &v1.RunPodSandboxRequest{RuntimeHandler: "class", Config: &v1.PodSandboxConfig{
			Metadata: &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"}, LogDirectory: "/logs",
			Linux: &v1.LinuxPodSandboxConfig{CgroupParent: "/kubepods", Overhead: &v1.LinuxContainerResources{CpuShares: 7}, Resources: &v1.LinuxContainerResources{CpuShares: 8}},
		}},
		Containers: []*core.Container{
			{State: core.ContainerExited, Main: core.Process{Pid: 0}},
			{State: core.ContainerRunning, Main: core.Process{Pid: 51}},
			{State: core.ContainerRunning, Main: core.Process{Pid: 52}},
		},
	}
}

func TestSandboxKeys(t *testing.T) {
	wantRendered(t, sandbox().Info(),
		`{{.info.pid}} {{.info.processStatus}} {{.info.netNamespaceClosed}}`, "51 running false",
		`[{{.info.image}}{{.info.snapshotKey}}{{.info.snapshotter}}]`, "[]",
		`{{.info.runtimeHandler}} {{.info.runtimeType}} {{.info.runtimeOptions}}`, "class native <no value>",
		`{{.info.config.metadata.name}} {{.info.config.linux.cgroup_parent}} {{.info.config.log_directory}}`, "web /kubepods /logs",
		`{{.info.overhead.linux.cpu_shares}} {{.info.resources.linux.cpu_shares}}`, "7 8",
		`{{.info.runtimeSpec.hostname}} {{.info.runtimeSpec.linux.cgroupsPath}} {{.info.runtimeSpec.linux.sysctl}}`, "web /kubepods/p map[net.core.somaxconn:9]",
		`{{range .info.runtimeSpec.linux.namespaces}}{{.type}}={{.path}} {{end}}`, "network=/run/ns/net ipc=/run/ns/ipc ",
		`{{index .info.runtimeSpec.annotations "io.kubernetes.cri.container-type"}}`, "sandbox",
		`{{range .info.cniResult.Interfaces.eth0.IPConfigs}}{{.IP}} {{.Gateway}},{{end}}`, "10.1.0.2 10.1.0.1,fd00::2 ,",
		`{{.info.cniResult.Interfaces.eth0.Mac}} {{.info.cniResult.Interfaces.eth0.Sandbox}} {{.info.cniResult.DNS}}`,
		"02:00:00:00:00:01 /run/ns/net [map[nameservers:[10.0.0.10]]]",
		`{{.info.sandboxMetadata.Version}} {{.info.sandboxMetadata.Metadata.ID}} {{.info.sandboxMetadata.Metadata.NetNSPath}}`, "v1 sb /run/ns/net",
		`{{.info.sandboxMetadata.Metadata.IP}} {{.info.sandboxMetadata.Metadata.AdditionalIPs}}`, "10.1.0.2 [fd00::2]",
		`{{.info.sandboxMetadata.Metadata.Config.linux.cgroup_parent}}`, "/kubepods",
	)
	stopped := sandbox()
	stopped.Record.State = core.SandboxStopped
	wantRendered(t, stopped.Info(), `{{.info.pid}} {{.info.processStatus}} {{.info.netNamespaceClosed}} {{.info.runtimeSpec.linux}} [{{.info.sandboxMetadata.Metadata.IP}}]`,
		"0 deleted true map[cgroupsPath:/kubepods/p sysctl:map[net.core.somaxconn:9]] []")
	host := sandbox()
	host.Record.Config.Namespaces.Net = core.Namespace{Mode: core.Host}
	host.Record.Network, host.Record.Init = core.NetworkStatus{}, 50
	wantRendered(t, host.Info(), `{{.info.pid}} {{.info.cniResult}} {{.info.netNamespaceClosed}}`, "50 <no value> false")
	host.Record.State = core.SandboxStopped
	wantRendered(t, host.Info(), `{{.info.netNamespaceClosed}}`, "false")
	empty := sandbox()
	empty.Containers = empty.Containers[:1]
	wantRendered(t, empty.Info(), `{{.info.pid}}`, "0")
}

func TestImageKeys(t *testing.T) {
	i := &core.Image{Digest: "sha256:m", Config: imagespec.Image{Config: imagespec.ImageConfig{Env: []string{"A=b"}}, RootFS: imagespec.RootFS{DiffIDs: []digest.Digest{"sha256:l"}}}}
	if d := cmp.Diff([]string{"sha256:l", "[A=b]"}, render(t, Image(i), `{{.info.chainID}}`, `{{.info.imageSpec.config.Env}}`)); d != "" {
		t.Error(d)
	}
}
