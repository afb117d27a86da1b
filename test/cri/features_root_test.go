package cri

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// noMkdir forbids mkdir and permits the rest, mount too.
const noMkdir = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`

// pullProfile pulls noMkdir and returns its reference.
func (s *suite) pullProfile(t *testing.T) string {
	t.Helper()
	built := imagetest.Artifact{Type: "application/vnd.cncf.seccomp-profile.config.v1+json", Config: []byte("{}"), Files: []imagetest.ArtifactFile{
		{Title: "seccomp.json", MediaType: "application/json", Body: []byte(noMkdir)},
	}}.Build()
	ref := imagetest.NewRegistry(t).Push("team/profile", "v1", built)
	pinned := ref[:strings.LastIndexByte(ref, ':')] + "@" + string(built.Manifest.Digest)
	got, err := s.n.Images.PullSecurityProfile(t.Context(), &v1.PullSecurityProfileRequest{Image: &v1.ImageSpec{Image: pinned}, ProfileKind: v1.SecurityProfileKind_Seccomp})
	if err != nil || got.GetCached() {
		t.Fatalf("%v, %v", got, err)
	}
	return pinned
}

func ofProfile(ref string) func(*v1.ContainerConfig) {
	return func(c *v1.ContainerConfig) {
		c.Linux.SecurityContext.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_OCI, OciRef: ref}
	}
}

// TestPulledProfiles shows the effect of a seccomp profile from a registry. The profile outlives the agent, and its removal does
// not affect containers.
func TestPulledProfiles(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		s := &suite{n: n, image: n.Busybox(t), handler: &v1.RuntimeHandler{}}
		ref := s.pullProfile(t)
		n.Kill()
		n.Up()
		again := &v1.PullSecurityProfileRequest{Image: &v1.ImageSpec{Image: ref}, ProfileKind: v1.SecurityProfileKind_Seccomp}
		if got, err := n.Images.PullSecurityProfile(t.Context(), again); err != nil || !got.GetCached() {
			t.Errorf("%v, %v", got, err)
		}
		all := func(c *v1.ContainerConfig) {
			c.Linux.SecurityContext.Capabilities = &v1.Capability{AddCapabilities: []string{"ALL"}}
		}
		c := s.run(t, func(c *v1.ContainerConfig) { ofProfile(ref)(c); all(c) })
		s.wantHas(t, c, "mkdir /tmp/x; true", "Operation not permitted")
		s.want(t, c, "touch /tmp/x && ls /tmp", "x")
		own := s.run(t, func(c *v1.ContainerConfig) {
			all(c)
			c.Linux.SecurityContext.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}
		})
		s.want(t, own, "mkdir /tmp/x && ls /tmp", "x")
		s.want(t, c, "grep Seccomp: /proc/self/status | tr -d '\\t '", "Seccomp:2")
		listed, err := n.Images.ListSecurityProfiles(t.Context(), &v1.ListSecurityProfilesRequest{})
		if err != nil || len(listed.GetProfiles()) != 1 || listed.GetProfiles()[0].GetDigest() != string(digest.FromString(noMkdir)) {
			t.Fatalf("%v, %v", listed, err)
		}
		images, err := n.Images.ListImages(t.Context(), &v1.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range images.GetImages() {
			if strings.Contains(strings.Join(i.GetRepoDigests(), " "), "team/profile") {
				t.Errorf("the profile is among the images: %v", i)
			}
		}
		if _, err := n.Images.RemoveSecurityProfile(t.Context(), &v1.RemoveSecurityProfileRequest{Digest: listed.GetProfiles()[0].GetDigest()}); err != nil {
			t.Error(err)
		}
		s.wantHas(t, c, "mkdir /tmp/y; true", "Operation not permitted")
		p, cfg := s.pod(t), s.config()
		cfg.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{}}
		ofProfile(ref)(cfg)
		_, err = n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config})
		if status.Code(err) != codes.NotFound {
			t.Errorf("with a profile that was removed: %v", err)
		}
		n.Check()
	})
}

// TestEveryFeature asks for each feature of the runtime and of its default handler. An announced feature works, and another one
// is refused.
func TestEveryFeature(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		s := &suite{n: n, image: n.Busybox(t), handler: &v1.RuntimeHandler{}}
		st, err := n.CRI.Status(t.Context(), &v1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		cgroups, err := os.Readlink("/proc/self/ns/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		ref := s.pullProfile(t)
		ids := []*v1.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}}
		userns := func(o *v1.NamespaceOption) {
			o.UsernsOptions = &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids, Gids: ids}
		}
		type ask struct {
			pod       func(*v1.NamespaceOption)
			container func(*v1.ContainerConfig)
			script    string
			want      string
		}
		asks := map[string]ask{
			"supplemental_groups_policy": {container: func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.SupplementalGroupsPolicy = v1.SupplementalGroupsPolicy_Strict
				c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.SupplementalGroups = &v1.Int64Value{Value: 33}, []int64{77}
			}, script: "id -G | tr ' ' '\\n' | grep -c 77", want: "1"},
			"user_namespaces_host_network": {pod: func(o *v1.NamespaceOption) { userns(o); o.Network = v1.NamespaceMode_NODE }, script: "cut -c1-40 /proc/self/uid_map | tr -s ' '", want: "0 200000 65536"},
			"mount_options": {container: func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{{HostPath: t.TempDir(), ContainerPath: "/m", MountOptions: []string{"noexec"}}}
			}, script: "grep -c ' /m .*noexec' /proc/mounts", want: "1"},
			"cgroup_mount_mode": {container: func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.CgroupMountMode = v1.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE
			}, script: "mkdir /sys/fs/cgroup/x && echo made", want: "made"},
			"seccomp_profile_oci": {container: ofProfile(ref), script: "mkdir /tmp/x 2> /dev/null || echo forbidden", want: "forbidden"},
			"recursive_read_only_mounts": {container: func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{{HostPath: t.TempDir(), ContainerPath: "/m", Readonly: true, RecursiveReadOnly: true}}
			}, script: "touch /m/x 2> /dev/null || echo read-only", want: "read-only"},
			"user_namespaces": {pod: userns, script: "cut -c1-40 /proc/self/uid_map | tr -s ' '", want: "0 200000 65536"},
			"cgroup_namespaces": {container: func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.NamespaceOptions.CgroupnsOptions = &v1.CgroupNamespace{Mode: v1.NamespaceMode_NODE}
			}, script: "readlink /proc/self/ns/cgroup", want: cgroups},
		}
		try := func(name string, announced bool) {
			a, ok := asks[name]
			if !ok {
				t.Errorf("%s: no request asks for this feature", name)
				return
			}
			cfg := s.config()
			cfg.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}}}
			pod := n.PodConfig("feature-" + strings.ReplaceAll(name, "_", "-"))
			if a.pod != nil {
				o := &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}
				if a.pod(o); o.Network == v1.NamespaceMode_NODE {
					pod.Hostname = ""
				}
				pod.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: o}}
				cfg.Linux.SecurityContext.NamespaceOptions = proto.CloneOf(o)
			}
			if a.container != nil {
				a.container(cfg)
			}
			if !announced {
				sb, err := n.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod})
				if err == nil {
					_, err = n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: cfg, SandboxConfig: pod})
				}
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%s is not announced: %v", name, err)
				}
				return
			}
			s.want(t, n.RunPod(t, pod).Run(t, cfg), a.script, a.want)
		}
		walk := func(m protoreflect.Message) {
			for i := range m.Descriptor().Fields().Len() {
				f := m.Descriptor().Fields().Get(i)
				try(string(f.Name()), m.Get(f).Bool())
			}
		}
		walk(st.GetFeatures().ProtoReflect())
		for _, h := range st.GetRuntimeHandlers() {
			if h.GetName() == "" {
				walk(h.GetFeatures().ProtoReflect())
			}
		}
	})
}
