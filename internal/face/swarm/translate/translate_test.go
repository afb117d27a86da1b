package translate

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

var theNode = Node{ID: "node1", Hostname: "host1", Architecture: "x86_64", OS: "linux", Devices: map[string][]string{"gpu": {"v.com/gpu=0", "v.com/gpu=1"}, "nic": {"v.com/nic=0"}}, Counts: map[string]int64{"seats": 3}} //nolint:gochecknoglobals // a constant

// task is one that fn has changed.
func task(fn func(t *swarmv1.Task, c *swarmv1.ContainerSpec)) *swarmv1.Task {
	c := &swarmv1.ContainerSpec{Image: "busybox:1"}
	t := &swarmv1.Task{
		Id: "abcdefghijklmnopqrstuvwxy", ServiceId: "s1", Slot: 3, NodeId: "node1", ServiceAnnotations: &swarmv1.Annotations{Name: "web", Labels: map[string]string{"tier": "front"}},
		Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: c}},
	}
	if fn != nil {
		fn(t, c)
	}
	return t
}

func counted(kind string, n int64) *swarmv1.GenericResource {
	return &swarmv1.GenericResource{Resource: &swarmv1.GenericResource_DiscreteResourceSpec{DiscreteResourceSpec: &swarmv1.DiscreteGenericResource{Kind: kind, Value: n}}}
}

func named(kind, value string) *swarmv1.GenericResource {
	return &swarmv1.GenericResource{Resource: &swarmv1.GenericResource_NamedResourceSpec{NamedResourceSpec: &swarmv1.NamedGenericResource{Kind: kind, Value: value}}}
}

func resources(list ...*swarmv1.GenericResource) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.AssignedGenericResources = list }
}

// ingress has a task on the swarm's ingress network.
func ingress(list ...*swarmv1.PortConfig) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		n := network("ingress", "overlay")
		n.GetNetwork().GetSpec().Ingress = true
		t.Networks, t.Endpoint = []*swarmv1.NetworkAttachment{n}, &swarmv1.Endpoint{Ports: list}
	}
}

func network(name, driver string) *swarmv1.NetworkAttachment {
	return &swarmv1.NetworkAttachment{Network: &swarmv1.Network{Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: name}}, DriverState: &swarmv1.Driver{Name: driver}}}
}

func hostPort(from, to uint32) *swarmv1.PortConfig {
	return &swarmv1.PortConfig{PublishedPort: from, TargetPort: to, PublishMode: swarmv1.PortConfig_HOST}
}

func ports(list ...*swarmv1.PortConfig) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.Endpoint = &swarmv1.Endpoint{Ports: list} }
}

func mounts(list ...*swarmv1.Mount) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) { c.Mounts = list }
}

func secret(name string) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) {
		c.Secrets = append(c.Secrets, &swarmv1.SecretReference{SecretId: "x", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: name}}})
	}
}

// TestWhatIsRefused: each has its class and names its subject.
func TestWhatIsRefused(t *testing.T) {
	type spec = swarmv1.ContainerSpec
	set := func(fn func(c *spec)) func(*swarmv1.Task, *spec) { return func(_ *swarmv1.Task, c *spec) { fn(c) } }
	notServed, wrong := errdefs.IsNotImplemented, errdefs.IsInvalidArgument
	for _, c := range []struct {
		text string
		is   func(error) bool
		fn   func(*swarmv1.Task, *spec)
	}{
		{"task id", wrong, func(t *swarmv1.Task, _ *spec) { t.Id = "" }},
		{"no container", wrong, func(t *swarmv1.Task, _ *spec) { t.Spec = nil }},
		{"attaching", notServed, func(t *swarmv1.Task, _ *spec) { t.Spec.Runtime = &swarmv1.TaskSpec_Attachment{} }},
		{`kind "wasm"`, notServed, func(t *swarmv1.Task, _ *spec) {
			t.Spec.Runtime = &swarmv1.TaskSpec_Generic{Generic: &swarmv1.GenericRuntimeSpec{Kind: "wasm"}}
		}},
		{"no image", wrong, set(func(c *spec) { c.Image = "" })},
		{"isolation", notServed, set(func(c *spec) { c.Isolation = swarmv1.ContainerSpec_ISOLATION_HYPERV })},
		{"credential specs", notServed, set(func(c *spec) {
			c.Privileges = &swarmv1.Privileges{CredentialSpec: &swarmv1.Privileges_CredentialSpec{}}
		})},
		{"selinux", wrong, set(func(c *spec) {
			c.Privileges = &swarmv1.Privileges{SelinuxContext: &swarmv1.Privileges_SELinuxContext{Type: "x:y"}}
		})},
		{"AppArmor", notServed, set(func(c *spec) {
			c.Privileges = &swarmv1.Privileges{Apparmor: &swarmv1.Privileges_AppArmorOpts{Mode: 9}}
		})},
		{`health check of the kind "HTTP"`, errdefs.IsInvalidArgument, set(func(c *spec) { c.Healthcheck = &swarmv1.HealthConfig{Test: []string{"HTTP", "/"}} })},
		{"health check without a command", errdefs.IsInvalidArgument, set(func(c *spec) { c.Healthcheck = &swarmv1.HealthConfig{Test: []string{"CMD"}} })},
		{"network own of the driver", notServed, func(t *swarmv1.Task, _ *spec) { t.Networks = []*swarmv1.NetworkAttachment{network("own", "macvlan")} }},
		{"on others", wrong, func(t *swarmv1.Task, _ *spec) {
			t.Networks = []*swarmv1.NetworkAttachment{network("host", "host"), network("bridge", "bridge")}
		}},
		{"no ingress network", notServed, ports(&swarmv1.PortConfig{TargetPort: 80, PublishedPort: 80})},
		{"assigned no number", wrong, ports(&swarmv1.PortConfig{TargetPort: 80})},
		{"gpu=v.com/gpu=2", notServed, resources(named("gpu", "v.com/gpu=2"))},
		{"nic=v.com/gpu=0", notServed, resources(named("nic", "v.com/gpu=0"))},
		{"assigned twice", wrong, resources(named("gpu", "v.com/gpu=0"), named("gpu", "v.com/gpu=0"))},
		{"gpu=2 by number", notServed, resources(counted("gpu", 2))},
		{"tpu=2: it is not in face.swarm.generic_counts", notServed, resources(counted("tpu", 2))},
		{"seats=4: this node has 3", notServed, resources(counted("seats", 4))},
		{"seats=-1", notServed, resources(counted("seats", -1))},
		{"generic resource", notServed, resources(&swarmv1.GenericResource{})},
		{"port 80 to 0", wrong, ports(hostPort(80, 0))},
		{"port 70000 to 80", wrong, ports(hostPort(70000, 80))},
		{"80/tcp is published twice", wrong, ports(hostPort(80, 80), hostPort(80, 81))},
		{"host", wrong, set(func(c *spec) { c.Hosts = []string{"10.0.0.1"} })},
		{"host", wrong, set(func(c *spec) { c.Hosts = []string{"ten db"} })},
		{"hostname", wrong, set(func(c *spec) { c.Hostname = strings.Repeat("x", 65) })},
		{`target "data"`, wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "data"})},
		{`target "/x/.."`, wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/x/.."})},
		{"two mounts, secrets or configs at /a", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a"}, &swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a/"})},
		{"not an absolute path", wrong, mounts(&swarmv1.Mount{Source: "x", Target: "/a"})},
		{`target "/a/../b"`, wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a/../b"})},
		{"two mounts, secrets or configs at /run/secrets/a", wrong, func(t *swarmv1.Task, c *spec) {
			secret("a")(t, c)
			mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/run/secrets/a"})(t, c)
		}},
		{"for one that is not", wrong, mounts(&swarmv1.Mount{Source: "/x", Target: "/a", BindOptions: &swarmv1.Mount_BindOptions{Readonlyforcerecursive: true}})},
		{"with rshared propagation", wrong, mounts(&swarmv1.Mount{Source: "/x", Target: "/a", Readonly: true, BindOptions: &swarmv1.Mount_BindOptions{Readonlyforcerecursive: true, Propagation: swarmv1.Mount_BindOptions_RSHARED}})},
		{"recursively and not", wrong, mounts(&swarmv1.Mount{Source: "/x", Target: "/a", Readonly: true, BindOptions: &swarmv1.Mount_BindOptions{Readonlyforcerecursive: true, Readonlynonrecursive: true}})},
		{"options of another type", wrong, mounts(&swarmv1.Mount{Source: "/x", Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{}})},
		{"the type 77", notServed, mounts(&swarmv1.Mount{Type: 77, Target: "/a"})},
		{`volume driver "nfs"`, notServed, mounts(&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Name: "nfs"}}})},
		{"leads out of the volume", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: "v", Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{Subpath: "../x"}})},
		{"without a name", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{Subpath: "x"}})},
		{"volume name", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: "../x", Target: "/a"})},
		{"has no source", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Source: "x", Target: "/a"})},
		{"tmpfs option", wrong, tmpfs(`[["bind"]]`)},
		{"tmpfs option", wrong, tmpfs(`[["size","1","2"]]`)},
		{"tmpfs option", wrong, tmpfs(`[[]]`)},
		{"tmpfs option", wrong, tmpfs("size=1,lowerdir=/")},
		{"tmpfs option", wrong, tmpfs("uid=root")},
		{"tmpfs options", wrong, tmpfs(`[["exec"`)},
		{"bytes", wrong, tmpfs(strings.Repeat("x", 4001))},
		{"of mode", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{Mode: 0o10000}})},
		{"of -1 bytes", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{SizeBytes: -1}})},
		{"the type npipe", notServed, mounts(&swarmv1.Mount{Type: swarmv1.Mount_NPIPE, Target: "/a"})},
		{"chosen no cluster volume", wrong, mounts(&swarmv1.Mount{Type: swarmv1.Mount_CLUSTER, Source: "a", Target: "/a"})},
		{"secret pw", wrong, secret("../../etc/passwd")},
		{"secret pw", wrong, secret("/run/../etc/shadow")},
		{"secret pw", wrong, secret(".")},
		{"secret pw", wrong, secret("")},
		{"at /run/secrets/a", wrong, func(t *swarmv1.Task, c *spec) { secret("a")(t, c); secret("/run/secrets/a")(t, c) }},
		{"has no file", wrong, set(func(c *spec) { c.Secrets = []*swarmv1.SecretReference{{SecretName: "pw"}} })},
		{"for the engine itself", notServed, set(func(c *spec) {
			c.Configs = []*swarmv1.ConfigReference{{ConfigName: "x", Target: &swarmv1.ConfigReference_Runtime{}}}
		})},
		{`log driver "gelf"`, notServed, func(t *swarmv1.Task, _ *spec) { t.Spec.LogDriver = &swarmv1.Driver{Name: "gelf"} }},
		{"max-file", wrong, func(t *swarmv1.Task, _ *spec) {
			t.LogDriver = &swarmv1.Driver{Options: map[string]string{"max-file": "0"}}
		}},
		{"max-size", wrong, func(t *swarmv1.Task, _ *spec) {
			t.LogDriver = &swarmv1.Driver{Options: map[string]string{"max-size": "much"}}
		}},
		{"CAP_FLY", wrong, set(func(c *spec) { c.CapabilityAdd = []string{"CAP_FLY"} })},
		{"oom score", wrong, set(func(c *spec) { c.OomScoreAdj = 1001 })},
		{"lives", wrong, set(func(c *spec) { c.Ulimits = []*swarmv1.ContainerSpec_Ulimit{{Name: "lives", Soft: 9, Hard: 9}} })},
		{"swappiness", wrong, func(t *swarmv1.Task, _ *spec) {
			t.Spec.Resources = &swarmv1.ResourceRequirements{MemorySwappiness: wrapperspb.Int64(101)}
		}},
		{"negative", wrong, func(t *swarmv1.Task, _ *spec) {
			t.Spec.Resources = &swarmv1.ResourceRequirements{Limits: &swarmv1.Resources{NanoCpus: -1}}
		}},
		{"reservation", wrong, func(t *swarmv1.Task, _ *spec) {
			t.Spec.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{MemoryBytes: -1}}
		}},
		{"seccomp", notServed, set(func(c *spec) {
			c.Privileges = &swarmv1.Privileges{Seccomp: &swarmv1.Privileges_SeccompOpts{Mode: 9}}
		})},
		{"template", wrong, set(func(c *spec) { c.Env = []string{"A={{.Nothing}}"} })},
	} {
		_, err := Read(task(c.fn), theNode)
		if err == nil || !c.is(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}

// TestIngressOnThisNode: with face.swarm.ingress a port of the whole swarm is one of the node's,
// and its ingress network is none of the task's.
func TestIngressOnThisNode(t *testing.T) {
	n := theNode
	n.Ingress = IngressHost
	a, err := Read(task(ingress(&swarmv1.PortConfig{TargetPort: 80, PublishedPort: 30000}, hostPort(8080, 81))), n)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := a.Sandbox()
	if want := []core.Port{{Proto: "tcp", Host: 30000, Container: 80}, {Proto: "tcp", Host: 8080, Container: 81}}; err != nil || !slices.Equal(sb.Network.Ports, want) || sb.Namespaces.Net.Mode != core.Shared {
		t.Errorf("%+v, %v", sb, err)
	}
	for text, asked := range map[string]*swarmv1.Task{
		"published twice": task(ingress(&swarmv1.PortConfig{TargetPort: 80, PublishedPort: 8080}, hostPort(8080, 81))),
	} {
		if _, err := Read(asked, n); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestATaskInFull: a container gets all that a service may set.
func TestATaskInFull(t *testing.T) {
	asked := task(func(t *swarmv1.Task, c *swarmv1.ContainerSpec) {
		ports(hostPort(8080, 80), hostPort(0, 81), hostPort(0, 81), &swarmv1.PortConfig{PublishedPort: 8080, TargetPort: 53, Protocol: swarmv1.PortConfig_UDP, PublishMode: swarmv1.PortConfig_HOST})(t, c)
		t.Networks = []*swarmv1.NetworkAttachment{network("bridge", "bridge")}
		t.Spec.Resources = &swarmv1.ResourceRequirements{
			Limits: &swarmv1.Resources{NanoCpus: 1_500_000_000, MemoryBytes: 64 << 20}, Reservations: &swarmv1.Resources{MemoryBytes: 32 << 20},
			SwapBytes: wrapperspb.Int64(16 << 20), MemorySwappiness: wrapperspb.Int64(10),
		}
		t.AssignedGenericResources = []*swarmv1.GenericResource{
			named("gpu", "v.com/gpu=1"), named("nic", "v.com/nic=0"), named("gpu", "v.com/gpu=0"), counted("seats", 2),
		}
		t.LogDriver = &swarmv1.Driver{Name: "json-file", Options: map[string]string{"max-size": "1m", "max-file": "5"}}
		proto.Merge(c, &swarmv1.ContainerSpec{
			Labels: map[string]string{"own": "x", core.LandlockAnnotation: "no-network-bind"}, Command: []string{"/bin/serve"}, Args: []string{"-v"}, Env: []string{"WHO={{.Service.Name}}.{{.Task.Slot}}@{{.Node.Hostname}}", "A=b"},
			Hostname: "{{.Node.ID}}-{{.Task.Slot}}", Dir: "/srv", User: "web", Groups: []string{"staff"}, Init: wrapperspb.Bool(true), ReadOnly: true, OpenStdin: true,
			StopSignal: "SIGINT", StopGracePeriod: durationpb.New(3 * time.Second), Hosts: []string{"10.0.0.9 db db.local", "10.0.0.9 cache"},
			DnsConfig: &swarmv1.ContainerSpec_DNSConfig{Nameservers: []string{"9.9.9.9"}, Search: []string{"local"}}, PidsLimit: 50, OomScoreAdj: 200,
			CapabilityAdd: []string{"CAP_SYS_TIME"}, CapabilityDrop: []string{"CAP_CHOWN"}, Sysctls: map[string]string{"net.core.somaxconn": "100"},
			Ulimits:    []*swarmv1.ContainerSpec_Ulimit{{Name: "nofile", Soft: 10, Hard: 20}},
			Privileges: &swarmv1.Privileges{NoNewPrivileges: true, Seccomp: &swarmv1.Privileges_SeccompOpts{Mode: swarmv1.Privileges_SeccompOpts_UNCONFINED}},
			Mounts: []*swarmv1.Mount{
				{Source: "/host", Target: "/in", Readonly: true, BindOptions: &swarmv1.Mount_BindOptions{Propagation: swarmv1.Mount_BindOptions_RSLAVE}},
				{Type: swarmv1.Mount_TMPFS, Target: "/scratch", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{SizeBytes: 1 << 20, Mode: 0o700}},
				{Type: swarmv1.Mount_VOLUME, Source: "data-{{.Task.Slot}}", Target: "/data", VolumeOptions: &swarmv1.Mount_VolumeOptions{Nocopy: true, Labels: map[string]string{"a": "{{.Service.Labels.tier}}"}}},
				{Type: swarmv1.Mount_VOLUME, Target: "/cache"},
			},
		})
		secret("pw")(t, c)
	})
	a, err := Read(asked, theNode)
	if err != nil {
		t.Fatal(err)
	}
	if asked.GetSpec().GetContainer().GetHostname() != "{{.Node.ID}}-{{.Task.Slot}}" {
		t.Error("the task itself was changed")
	}
	sb, err := a.Sandbox()
	if err != nil {
		t.Fatal(err)
	}
	if sb.Hostname != "node1-3" || sb.Namespaces.Net.Mode != core.Shared || !slices.Equal(sb.Network.Ports, []core.Port{{Proto: "tcp", Host: 8080, Container: 80}, {Proto: "tcp", Container: 81}, {Proto: "tcp", Container: 81}, {Proto: "udp", Host: 8080, Container: 53}}) ||
		!reflect.DeepEqual(sb.Network.Hosts, map[string][]string{"10.0.0.9": {"db db.local", "cache"}}) || !slices.Equal(sb.Network.DNS.Servers, []string{"9.9.9.9"}) {
		t.Errorf("sandbox %+v", sb)
	}
	c, err := a.Container(core.Image{ID: "sha256:x"}, Place{Log: "/logs/x.log", Files: []string{"/secrets/0"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Root.Image != "sha256:x" || !c.Root.ReadOnly || !c.Init || c.Stop != (core.Stop{Signal: "SIGINT", Grace: 3 * time.Second}) || c.IO.Stdin != core.StdinOpen || c.Labels["own"] != "x" || c.Labels["com.docker.swarm.service.name"] != "web" {
		t.Errorf("container %+v", c)
	}
	if s := c.IO.Sinks; len(s) != 1 || s[0].Path != "/logs/x.log" || s[0].MaxBytes != 1<<20 || s[0].MaxFiles != 5 {
		t.Errorf("sinks %+v", s)
	}
	if want := []string{"v.com/gpu=1", "v.com/nic=0", "v.com/gpu=0"}; !slices.Equal(c.CDI, want) || !slices.Equal(a.Devices(), want) {
		t.Errorf("devices %q", c.CDI)
	}
	if v := c.Volumes; len(v) != 2 || !reflect.DeepEqual(v[0], core.VolumeMount{Name: "data-3", Target: "/data", NoCopy: true, Labels: map[string]string{"a": "front"}}) || !OwnVolumeOf("abcdefghijklmnopqrstuvwxy", v[1].Name) || OwnVolumeOf("task2", v[1].Name) || !OwnVolume(v[1].Name) || OwnVolume("data-3") || OwnVolumeOf("abcdefghijklmnopqrstuvwxy", "data-3") {
		t.Errorf("volumes %+v", v)
	}
	s := finished(t, c, sb)
	if p := s.Process; !slices.Equal(p.Args, []string{"/bin/serve", "-v"}) || p.Cwd != "/srv" || p.User.UID != 33 || !slices.Contains(p.User.AdditionalGids, 50) || !p.NoNewPrivileges || *p.OOMScoreAdj != 200 {
		t.Errorf("process %+v", p)
	}
	for _, want := range []string{"WHO=web.3@host1", "A=b", "DOCKER_RESOURCE_GPU=v.com/gpu=1,v.com/gpu=0", "DOCKER_RESOURCE_NIC=v.com/nic=0", "DOCKER_RESOURCE_SEATS=2", "HOSTNAME=node1-3"} {
		if !slices.Contains(s.Process.Env, want) {
			t.Errorf("%s is not in %q", want, s.Process.Env)
		}
	}
	if caps := s.Process.Capabilities.Bounding; !slices.Contains(caps, "CAP_SYS_TIME") || slices.Contains(caps, "CAP_CHOWN") || s.Linux.Seccomp != nil {
		t.Errorf("capabilities %v, seccomp %v", caps, s.Linux.Seccomp)
	}
	if s.Annotations[core.LandlockAnnotation] != "no-network-bind" {
		t.Errorf("annotations %v", s.Annotations)
	}
	r := s.Linux.Resources
	if *r.Memory.Limit != 64<<20 || *r.Memory.Swap != 80<<20 || *r.Memory.Reservation != 32<<20 || *r.Memory.Swappiness != 10 || *r.CPU.Quota != 150_000 || *r.Pids.Limit != 50 {
		t.Errorf("resources %+v %+v", r.Memory, r.CPU)
	}
	if l := s.Process.Rlimits; len(l) != 1 || l[0] != (specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}) || s.Linux.Sysctl["net.core.somaxconn"] != "100" {
		t.Errorf("rlimits %v, sysctls %v", l, s.Linux.Sysctl)
	}
	for target, want := range map[string]specs.Mount{
		"/in":             {Type: "bind", Source: "/host", Options: []string{"rslave", "ro"}},
		"/scratch":        {Type: "tmpfs", Source: "tmpfs", Options: []string{"size=1048576", "mode=700", "noexec"}},
		"/run/secrets/pw": {Type: "bind", Source: "/secrets/0", Options: []string{"ro"}},
	} {
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
		if i < 0 || s.Mounts[i].Type != want.Type || s.Mounts[i].Source != want.Source {
			t.Errorf("no mount at %s: %+v", target, s.Mounts)
			continue
		}
		for _, o := range want.Options {
			if !slices.Contains(s.Mounts[i].Options, o) {
				t.Errorf("%s has the options %v, not %s", target, s.Mounts[i].Options, o)
			}
		}
	}
}

// finished is the spec when there is a root.
func finished(t *testing.T, c core.ContainerConfig, sb core.SandboxConfig) *specs.Spec {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": "web:x:33:33::/srv:/bin/sh\n", "group": "web:x:33:\nstaff:x:50:\n"} {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	s, _, err := c.Spec(context.Background(), core.Rootfs{FS: root, Image: &imagespec.ImageConfig{Cmd: []string{"image"}, Entrypoint: []string{"entry"}}, Sandbox: core.Sandbox{Config: sb}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestATaskThatSaysLittle has docker's defaults.
func TestATaskThatSaysLittle(t *testing.T) {
	for name, c := range map[string]struct {
		fn   func(*swarmv1.Task, *swarmv1.ContainerSpec)
		args []string
		host bool
	}{
		"nothing":   {nil, []string{"entry", "image"}, false},
		"a command": {func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) { c.Command = []string{"a"} }, []string{"a"}, false},
		"arguments": {func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) { c.Args = []string{"b"} }, []string{"entry", "b"}, false},
		"the host network": {func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
			t.Networks = []*swarmv1.NetworkAttachment{network("host", "host")}
		}, []string{"entry", "image"}, true},
		"no check": {func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) {
			c.Healthcheck = &swarmv1.HealthConfig{Test: []string{"NONE"}}
		}, []string{"entry", "image"}, false},
	} {
		a, err := Read(task(c.fn), theNode)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sb, err := a.Sandbox()
		if err != nil || (sb.Namespaces.Net.Mode == core.Host) != c.host || sb.Hostname != "" || ShortName(a) == c.host {
			t.Errorf("%s: %+v, %v", name, sb, err)
		}
		ct, err := a.Container(core.Image{}, Place{Log: "/l"})
		if err != nil || ct.Stop.Grace != 10*time.Second || len(ct.IO.Sinks) != 1 || ct.IO.Sinks[0].MaxFiles != 3 {
			t.Errorf("%s: %+v, %v", name, ct, err)
		}
		s := finished(t, ct, sb)
		if !slices.Equal(s.Process.Args, c.args) || s.Linux.Seccomp == nil {
			t.Errorf("%s: args %q, seccomp %v", name, s.Process.Args, s.Linux.Seccomp != nil)
		}
	}
	a, err := Read(task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.LogDriver = &swarmv1.Driver{Name: "none"} }), theNode)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.Container(core.Image{}, Place{Log: "/l"}); err != nil || len(c.IO.Sinks) != 0 {
		t.Errorf("without logs: %+v, %v", c.IO, err)
	}
	global := Task{Swarm: &swarmv1.Task{Id: "i", NodeId: "n", ServiceAnnotations: &swarmv1.Annotations{Name: "web"}}}
	if global.Name() != "web.n.i" {
		t.Errorf("a global task is %s", global.Name())
	}
}

func TestCredentials(t *testing.T) {
	for text, want := range map[string]core.PullOptions{
		"": {},
		"eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6InAifQ==": {Username: "u", Password: "p"},
		"eyJhdXRoIjoiZFRwdyJ9":                         {Username: "u", Password: "p"},
		"eyJpZGVudGl0eXRva2VuIjoidCJ9":                 {Token: "t"},
		"eyJyZWdpc3RyeXRva2VuIjoiYiJ9":                 {Bearer: "b"},
	} {
		if got, err := credentials(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	const secret = "planted-secret"
	if _, err := credentials(secret); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
}

// FuzzRead: any assignment is refused with a class or can be made.
func FuzzRead(f *testing.F) {
	onOverlays := task(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) {
		t.Networks = []*swarmv1.NetworkAttachment{overlay("a", option(optionMTU, "1400"), option(optionEncrypted, "")), overlay("ingress", ofIngress)}
		t.Endpoint = &swarmv1.Endpoint{
			Ports:      []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080}},
			VirtualIps: []*swarmv1.Endpoint_VirtualIP{{NetworkId: "id-of-a", Addr: "10.0.1.11/24"}},
		}
	})
	for _, t := range []*swarmv1.Task{task(nil), task(ports(hostPort(1, 2))), task(secret("a")), task(mounts(&swarmv1.Mount{Source: "/x", Target: "/y"})), onOverlays} {
		data, err := proto.Marshal(t)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		asked := &swarmv1.Task{}
		if proto.Unmarshal(data, asked) != nil {
			return
		}
		a, err := Read(asked, theNode)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
				t.Fatalf("an error without a class: %v", err)
			}
			return
		}
		if sb, err := a.Sandbox(); err != nil && !errdefs.IsInvalidArgument(err) {
			t.Fatalf("what was read has no sandbox: %v", err)
		} else {
			for _, at := range sb.Network.Attach {
				if at.Network != core.NetworkDefault && (len(at.Addrs) == 0 || at.MAC == "") {
					t.Fatalf("an interface without an address: %+v", at)
				}
			}
		}
		if _, err := a.Container(core.Image{}, Place{Log: "/l", Files: make([]string, len(a.Files()))}); err != nil && !errdefs.IsInvalidArgument(err) {
			t.Fatalf("what was read cannot be made: %v", err)
		}
		for _, file := range a.Files() {
			if !filepath.IsAbs(file.Target) || filepath.Clean(file.Target) != file.Target {
				t.Fatalf("a file at %q", file.Target)
			}
		}
	})
}
