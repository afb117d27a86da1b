package cri

import (
	"crypto/sha256"
	"encoding/binary"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

// FuzzRunPodSandbox: any request is refused or becomes a sandbox with a record of the same content.
func FuzzRunPodSandbox(f *testing.F) {
	for _, req := range []*v1.RunPodSandboxRequest{
		nil, podRequest(),
		podRequest(withNamespaces(&v1.NamespaceOption{UsernsOptions: &v1.UserNamespace{Uids: []*v1.IDMapping{{Length: 1}}, Gids: []*v1.IDMapping{{Length: 1}}}})),
		podRequest(func(c *v1.PodSandboxConfig) {
			c.PortMappings = []*v1.PortMapping{{HostPort: 1, ContainerPort: 1, HostIp: "::"}}
			c.Linux.Sysctls = map[string]string{"net/x": "1"}
			c.Annotations["kubernetes.io/egress-bandwidth"] = "1M"
		}),
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var req v1.RunPodSandboxRequest
		if proto.Unmarshal(b, &req) != nil {
			return
		}
		cfg, err := sandboxConfig(DefaultConfig(), &req)
		if err != nil {
			return
		}
		if strings.Contains(string(cfg.Key), "\x00") || len(cfg.Key) > core.MaxKey {
			t.Errorf("key %q", cfg.Key)
		}
		r, err := podOf(&core.Sandbox{Meta: core.Meta{Data: cfg.Data, Labels: cfg.Labels}})
		if err != nil {
			t.Fatal(err)
		}
		if m := r.Config.GetConfig().GetMetadata(); !proto.Equal(m, req.GetConfig().GetMetadata()) {
			t.Errorf("metadata %v became %v", req.GetConfig().GetMetadata(), m)
		}
		sandboxStatus(&core.Sandbox{Config: cfg}, r)
	})
}

// FuzzCreateContainer: a request is refused or becomes a spec that holds
// together.
func FuzzCreateContainer(f *testing.F) {
	for _, c := range []*v1.ContainerConfig{nil, testAsk(f).req.GetConfig(), testAsk(f, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{HostPath: "/h", ContainerPath: "/c", Readonly: true}}
		c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("b")}}
		c.Command = []string{"sh"}
		c.Linux.Resources = &v1.LinuxContainerResources{CpuQuota: 1, CpusetCpus: "0-1", HugepageLimits: []*v1.HugepageLimit{{PageSize: "2MB"}}}
		c.Linux.SecurityContext.Capabilities = &v1.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"KILL"}}
		c.Linux.SecurityContext.Seccomp = &v1.SecurityProfile{}
		c.Linux.SecurityContext.RunAsUsername = "www-data"
	}).req.GetConfig()} {
		b, err := proto.Marshal(&v1.CreateContainerRequest{PodSandboxId: "s", Config: c})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a := testAsk(t)
		a.req = &v1.CreateContainerRequest{}
		if proto.Unmarshal(b, a.req) != nil || checkContainer(a.req) != nil {
			return
		}
		cfg, err := a.config()
		if err != nil {
			return
		}
		for _, s := range cfg.IO.Sinks {
			if !strings.HasPrefix(s.Path, "/var/log/pods/default_web_u1/") && a.req.GetSandboxConfig().GetLogDirectory() == "" {
				t.Errorf("log at %q", s.Path)
			}
		}
		s, err := specOf(t, a, &imagespec.ImageConfig{Cmd: []string{"x"}})
		if err != nil {
			return
		}
		if len(s.Process.Args) == 0 || !path.IsAbs(s.Process.Cwd) {
			t.Errorf("process %+v", s.Process)
		}
		for _, e := range s.Process.Env {
			if strings.Contains(e, "\x00") || !strings.Contains(e, "=") {
				t.Errorf("environment %q", e)
			}
		}
		for _, m := range s.Mounts {
			if !path.IsAbs(m.Destination) || m.Type == "bind" && !path.IsAbs(m.Source) {
				t.Errorf("mount %+v", m)
			}
		}
	})
}

// FuzzLogPath: no log leaves its directory.
func FuzzLogPath(f *testing.F) {
	f.Add("/logs", "a/0.log")
	f.Add("/logs", "../x")
	f.Add("/", "a\x00")
	f.Fuzz(func(t *testing.T, dir, file string) {
		p, err := logPath(dir, file)
		if err != nil || p == "" {
			return
		}
		if base := path.Clean(dir); base != "/" && !strings.HasPrefix(p, base+"/") || path.Clean(p) != p {
			t.Errorf("%q in %q is %q", file, dir, p)
		}
	})
}

// FuzzSelectors: filters never panic and an empty one matches everything shown.
func FuzzSelectors(f *testing.F) {
	f.Add("abc", "k", "v", "k", "v")
	f.Add("", "", "", "x", "")
	f.Fuzz(func(t *testing.T, id, k, v, sk, sv string) {
		labels := map[string]string{k: v}
		got := matchSandbox(&v1.PodSandboxFilter{Id: id, LabelSelector: map[string]string{sk: sv}}, &core.Sandbox{
			Meta: core.Meta{ID: "abcdef", Labels: labels}, State: core.SandboxReady,
		})
		if want := strings.HasPrefix("abcdef", id) && sk == k && sv == v; got != want {
			t.Errorf("id %q, %q=%q of %v: %v", id, sk, sv, labels, got)
		}
		if !matchContainer(nil, &core.Container{State: core.ContainerCreated}) {
			t.Error("no filter does not match")
		}
	})
}

// FuzzRecord: stored bytes of any form are refused or read, never worse.
func FuzzRecord(f *testing.F) {
	r, err := newPodRecord(podRequest())
	if err != nil {
		f.Fatal(err)
	}
	b, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	c := containerRecord{
		Config: &v1.ContainerConfig{
			Metadata: &v1.ContainerMetadata{Name: "web", Attempt: 3}, Image: &v1.ImageSpec{Image: "sha256:x"}, Annotations: map[string]string{"c": "d"},
			Mounts: []*v1.Mount{{HostPath: "/a", ContainerPath: "/b"}}, Command: []string{"serve"}, Linux: &v1.LinuxContainerConfig{},
		},
		Found: &v1.ContainerStatus{
			Image: &v1.ImageSpec{Image: "redis:7"}, ImageId: "sha256:x", ImageRef: "redis@sha256:y",
			User: &v1.ContainerUser{Linux: &v1.LinuxContainerUser{Uid: 7}}, Resources: &v1.ContainerResources{Linux: &v1.LinuxContainerResources{CpuShares: 9}},
		},
	}
	if b, err = c.encode(); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(earlier(f, podRequest(), nil))
	f.Add(earlier(f, c.Config, c.Found))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := podOf(&core.Sandbox{Meta: core.Meta{Data: b}}); err == nil {
			sandboxStatus(&core.Sandbox{}, r)
			sb := &core.Sandbox{Meta: core.Meta{Data: b}}
			sameHead(t, sb, podHead, podOf, listedSandbox)
			sameHead(t, sb, podHead, podOf, sandboxStatus)
		}
		if r, err := containerOf(&core.Container{Meta: core.Meta{Data: b}}); err == nil {
			containerStatus(&core.Container{}, r)
			c := &core.Container{Meta: core.Meta{Data: b}}
			sameHead(t, c, containerHead, containerOf, listedContainer)
			sameHead(t, c, containerHead, containerOf, containerStatus)
		}
	})
}

// earlier is a record as an agent before this one wrote it: version 1.
func earlier(tb testing.TB, config proto.Message, found *v1.ContainerStatus) []byte {
	tb.Helper()
	cfg, err := proto.Marshal(config)
	if err != nil {
		tb.Fatal(err)
	}
	b := append([]byte{1}, make([]byte, sha256.Size)...)
	b = append(binary.AppendUvarint(b, uint64(len(cfg))), cfg...)
	if b, err = (proto.MarshalOptions{}).MarshalAppend(b, found); err != nil {
		tb.Fatal(err)
	}
	return b
}

// sameHead wants equal lists of a record's head and of the whole.
func sameHead[O, R any, L proto.Message](t *testing.T, o O, head, whole func(O) (R, error), list func(O, R) L) {
	t.Helper()
	h, err := head(o)
	if err != nil {
		t.Fatal(err)
	}
	w, err := whole(o)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(list(o, w), list(o, h), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// FuzzAuth: credentials of any form are refused or taken apart.
func FuzzAuth(f *testing.F) {
	f.Add("dXNlcjpwYXNz", "https://index.docker.io/v1/", "redis")
	f.Fuzz(func(t *testing.T, auth, server, ref string) {
		_, err := convert.PullOptions(ref, &v1.AuthConfig{Auth: auth, ServerAddress: server})
		if err != nil && strings.Contains(err.Error(), auth) && len(auth) > 4 {
			t.Errorf("the error tells the credentials: %v", err)
		}
	})
}
