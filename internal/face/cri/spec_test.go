package cri

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

const (
	passwdFile = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\ndefault-user:x:1000:1000::/home/d:/bin/sh\n"
	groupFile  = "root:x:0:\nwww-data:x:33:\nusers:x:100:\nteam:x:50000:default-user\n"
)

// testAsk is a request for a container in a sandbox with the modes of kubelet.
func testAsk(tb testing.TB, change ...func(*v1.ContainerConfig)) containerAsk {
	tb.Helper()
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c", Attempt: 1}, Image: &v1.ImageSpec{Image: "redis"},
		LogPath: "c/1.log", Linux: &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{}},
	}
	for _, c := range change {
		c(cfg)
	}
	pod := podRequest(withNamespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}))
	sb, err := sandboxConfig(DefaultConfig(), pod)
	if err != nil {
		tb.Fatal(err)
	}
	return containerAsk{
		face: DefaultConfig(), req: &v1.CreateContainerRequest{PodSandboxId: "s", Config: cfg},
		sandbox: &core.Sandbox{Meta: core.Meta{ID: "s", Key: sb.Key, Data: sb.Data}, Config: sb, State: core.SandboxReady}, pod: pod,
		image:   core.Image{ID: "sha256:x", Names: []string{"docker.io/library/redis:latest"}, Digests: []string{"docker.io/library/redis@sha256:y"}},
		runtime: core.RuntimeFeatures{RecursiveReadOnly: true, IDMappedMounts: true},
	}
}

func security(change func(*v1.LinuxContainerSecurityContext)) func(*v1.ContainerConfig) {
	return func(c *v1.ContainerConfig) { change(c.Linux.SecurityContext) }
}

// rootWith is a root filesystem with these files.
func rootWith(tb testing.TB, files map[string]string) *os.Root {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			tb.Fatal(err)
		}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			if err := os.Symlink(target, p); err != nil {
				tb.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = root.Close() })
	return root
}

func testRoot(tb testing.TB) *os.Root {
	tb.Helper()
	return rootWith(tb, map[string]string{"etc/passwd": passwdFile, "etc/group": groupFile})
}

func specOf(tb testing.TB, a containerAsk, img *imagespec.ImageConfig) (*specs.Spec, error) {
	tb.Helper()
	s, _, err := madeOf(tb, a, img)
	return s, err
}

// madeOf returns a container's spec and its stored data.
func madeOf(tb testing.TB, a containerAsk, img *imagespec.ImageConfig) (*specs.Spec, []byte, error) {
	tb.Helper()
	cfg, err := a.config()
	if err != nil {
		return nil, nil, err
	}
	return cfg.Spec(tb.Context(), core.Rootfs{FS: testRoot(tb), Image: img, Sandbox: *a.sandbox, ID: "c"})
}

func mustSpec(tb testing.TB, a containerAsk, img *imagespec.ImageConfig) *specs.Spec {
	tb.Helper()
	s, err := specOf(tb, a, img)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestAContainerIsTranslatedWhole(t *testing.T) {
	a := testAsk(t, func(c *v1.ContainerConfig) {
		c.Stdin, c.StdinOnce, c.Tty = true, true, true
		c.Labels = map[string]string{"x": "y"}
		c.StopSignal = v1.Signal_SIGNAL_SIGQUIT
		c.Linux.SecurityContext.ReadonlyRootfs = true
	})
	a.target = "other"
	cfg, err := a.config()
	if err != nil {
		t.Fatal(err)
	}
	data := cfg.Data
	cfg.Spec, cfg.Data, cfg.Users.Caps = nil, nil, nil
	want := core.ContainerConfig{
		Key: "c_1_s", Labels: map[string]string{"x": "y"}, Sandbox: "s", Join: []core.Join{{Namespace: specs.PIDNamespace, Container: "other"}},
		Root: core.Root{Image: "sha256:x", ReadOnly: true}, Stop: core.Stop{Signal: "3"},
		IO: core.IO{
			TTY: true, Stdin: core.StdinOnce,
			Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Path: "/var/log/pods/default_web_u1/c/1.log", Below: "/var/log/pods/default_web_u1"}},
		},
		LogDriver: &core.LogDriver{Image: "redis"},
	}
	if d := cmp.Diff(want, cfg); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r, err := containerOf(&core.Container{Meta: core.Meta{Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Found.Image.Image != "docker.io/library/redis:latest" || r.Found.ImageId != "sha256:x" || r.Found.ImageRef != "docker.io/library/redis@sha256:y" {
		t.Errorf("image in the record: %v", r.Found)
	}
}

func TestCommandsOfRequestAndImage(t *testing.T) {
	img := &imagespec.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"cmd"}}
	for name, tt := range map[string]struct {
		command, args []string
		img           *imagespec.ImageConfig
		want          []string
	}{
		"image's":           {nil, nil, img, []string{"/entry", "cmd"}},
		"args":              {nil, []string{"a"}, img, []string{"/entry", "a"}},
		"command":           {[]string{"/c"}, nil, img, []string{"/c"}},
		"both":              {[]string{"/c"}, []string{"a"}, img, []string{"/c", "a"}},
		"args, bare image":  {nil, []string{"a"}, &imagespec.ImageConfig{}, []string{"a"}},
		"nothing anywhere":  {nil, nil, &imagespec.ImageConfig{}, nil},
		"an empty command":  {[]string{""}, nil, img, nil},
		"NUL in a command":  {[]string{"/c\x00"}, nil, img, nil},
		"no image, command": {[]string{"/c"}, nil, nil, []string{"/c"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := specOf(t, testAsk(t, func(c *v1.ContainerConfig) { c.Command, c.Args = tt.command, tt.args }), tt.img)
			if tt.want == nil {
				if !errdefs.IsInvalidArgument(err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil || !slices.Equal(s.Process.Args, tt.want) {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	img := &imagespec.ImageConfig{Cmd: []string{"x"}, Env: []string{"A=image", "B=image", "PATH=/image"}, WorkingDir: "/srv/"}
	s := mustSpec(t, testAsk(t, func(c *v1.ContainerConfig) {
		c.Envs = []*v1.KeyValue{{Key: "B", Value: []byte("asked=1")}, {Key: "C"}}
		c.Tty = true
	}), img)
	want := []string{"HOME=/root", "HOSTNAME=web-0", "TERM=xterm", "A=image", "PATH=/image", "B=asked=1", "C="}
	if d := cmp.Diff(want, s.Process.Env); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if s.Process.Cwd != "/srv" || !s.Process.Terminal {
		t.Errorf("cwd %q, terminal %v", s.Process.Cwd, s.Process.Terminal)
	}
	for _, e := range []*v1.KeyValue{{}, {Key: "a=b"}, {Key: "a\x00"}, {Key: "a", Value: []byte{0}}} {
		if _, err := specOf(t, testAsk(t, func(c *v1.ContainerConfig) { c.Envs = []*v1.KeyValue{e} }), img); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", e, err)
		}
	}
	if _, err := specOf(t, testAsk(t, func(c *v1.ContainerConfig) { c.WorkingDir = "srv" }), img); !errdefs.IsInvalidArgument(err) {
		t.Errorf("relative directory: %v", err)
	}
}

func TestUsers(t *testing.T) {
	id := func(n int64) *v1.Int64Value { return &v1.Int64Value{Value: n} }
	for name, tt := range map[string]struct {
		sc    *v1.LinuxContainerSecurityContext
		image string
		want  specs.User
		bad   bool
	}{
		"nothing":              {&v1.LinuxContainerSecurityContext{}, "", specs.User{AdditionalGids: []uint32{0}}, false},
		"image's name":         {&v1.LinuxContainerSecurityContext{}, "www-data", specs.User{UID: 33, GID: 33, AdditionalGids: []uint32{33}}, false},
		"image's name, group":  {&v1.LinuxContainerSecurityContext{}, "www-data:users", specs.User{UID: 33, GID: 100, AdditionalGids: []uint32{100}}, false},
		"image's unknown uid":  {&v1.LinuxContainerSecurityContext{}, "4242", specs.User{UID: 4242, AdditionalGids: []uint32{0}}, false},
		"uid":                  {&v1.LinuxContainerSecurityContext{RunAsUser: id(0)}, "www-data", specs.User{AdditionalGids: []uint32{0}}, false},
		"uid and group":        {&v1.LinuxContainerSecurityContext{RunAsUser: id(1000), RunAsGroup: id(7)}, "", specs.User{UID: 1000, GID: 7, AdditionalGids: []uint32{7, 50000}}, false},
		"name":                 {&v1.LinuxContainerSecurityContext{RunAsUsername: "www-data"}, "0", specs.User{UID: 33, GID: 33, AdditionalGids: []uint32{33}}, false},
		"merged groups":        {&v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234, 1000}}, "1000", specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 50000, 1234}}, false},
		"strict groups":        {&v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234}, SupplementalGroupsPolicy: v1.SupplementalGroupsPolicy_Strict}, "1000", specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 1234}}, false},
		"unknown name":         {&v1.LinuxContainerSecurityContext{RunAsUsername: "ghost"}, "", specs.User{}, true},
		"unknown image's name": {&v1.LinuxContainerSecurityContext{}, "ghost", specs.User{}, true},
		"group without user":   {&v1.LinuxContainerSecurityContext{RunAsGroup: id(1)}, "", specs.User{}, true},
		"user and name":        {&v1.LinuxContainerSecurityContext{RunAsUser: id(1), RunAsUsername: "root"}, "", specs.User{}, true},
		"negative":             {&v1.LinuxContainerSecurityContext{RunAsUser: id(-1)}, "", specs.User{}, true},
		"too large":            {&v1.LinuxContainerSecurityContext{RunAsUser: id(1 << 32)}, "", specs.User{}, true},
		"negative extra group": {&v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{-1}}, "", specs.User{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := testAsk(t, func(c *v1.ContainerConfig) { c.Linux.SecurityContext = tt.sc })
			s, kept, err := madeOf(t, a, &imagespec.ImageConfig{User: tt.image, Cmd: []string{"x"}})
			if tt.bad {
				if !errdefs.IsInvalidArgument(err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, s.Process.User); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			r, err := containerOf(&core.Container{Meta: core.Meta{Data: kept}})
			if err != nil {
				t.Fatal(err)
			}
			if u := r.Found.User.Linux; u.Uid != int64(tt.want.UID) || u.Gid != int64(tt.want.GID) || len(u.SupplementalGroups) != len(tt.want.AdditionalGids) {
				t.Errorf("the status says %v", u)
			}
		})
	}
}

func TestCapabilities(t *testing.T) {
	for name, tt := range map[string]struct {
		sc        *v1.LinuxContainerSecurityContext
		has, not  []string
		ambient   []string
		boundings int
	}{
		"default":     {&v1.LinuxContainerSecurityContext{}, []string{"CAP_CHOWN", "CAP_NET_RAW"}, []string{"CAP_SYS_ADMIN"}, nil, 14},
		"add":         {caps([]string{"sys_admin"}, nil), []string{"CAP_SYS_ADMIN", "CAP_CHOWN"}, nil, nil, 15},
		"drop":        {caps(nil, []string{"CAP_NET_RAW"}), []string{"CAP_CHOWN"}, []string{"CAP_NET_RAW"}, nil, 13},
		"all":         {caps([]string{"ALL"}, nil), []string{"CAP_SYS_ADMIN", "CAP_BPF"}, nil, nil, 41},
		"all but one": {caps([]string{"all"}, []string{"SYS_ADMIN"}), []string{"CAP_BPF"}, []string{"CAP_SYS_ADMIN"}, nil, 40},
		"none":        {caps(nil, []string{"ALL"}), nil, []string{"CAP_CHOWN"}, nil, 0},
		"only one":    {caps([]string{"NET_BIND_SERVICE"}, []string{"ALL"}), []string{"CAP_NET_BIND_SERVICE"}, []string{"CAP_CHOWN"}, nil, 1},
		"ambient": {
			&v1.LinuxContainerSecurityContext{Capabilities: &v1.Capability{AddAmbientCapabilities: []string{"SYS_TIME"}}},
			[]string{"CAP_SYS_TIME"},
			nil,
			[]string{"CAP_SYS_TIME"},
			15,
		},
		"privileged": {&v1.LinuxContainerSecurityContext{Privileged: true}, []string{"CAP_SYS_ADMIN"}, nil, nil, 41},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := capabilities(tt.sc)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range tt.has {
				if !slices.Contains(c.Bounding, n) || !slices.Contains(c.Effective, n) || !slices.Contains(c.Permitted, n) {
					t.Errorf("%s is missing", n)
				}
			}
			for _, n := range tt.not {
				if slices.Contains(c.Bounding, n) {
					t.Errorf("%s is there", n)
				}
			}
			if len(c.Bounding) != tt.boundings || !slices.Equal(c.Ambient, tt.ambient) || !slices.Equal(c.Inheritable, tt.ambient) {
				t.Errorf("%d bounding, ambient %v, inheritable %v", len(c.Bounding), c.Ambient, c.Inheritable)
			}
		})
	}
	if _, err := capabilities(caps([]string{"FLY"}, nil)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown capability: %v", err)
	}
}

func caps(add, drop []string) *v1.LinuxContainerSecurityContext {
	return &v1.LinuxContainerSecurityContext{Capabilities: &v1.Capability{AddCapabilities: add, DropCapabilities: drop}}
}

func TestSecurity(t *testing.T) {
	img := &imagespec.ImageConfig{Cmd: []string{"x"}}
	t.Run("without a context the usual paths are masked", func(t *testing.T) {
		s := mustSpec(t, testAsk(t, func(c *v1.ContainerConfig) { c.Linux = nil }), img)
		if !slices.Contains(s.Linux.MaskedPaths, "/proc/kcore") || !slices.Contains(s.Linux.ReadonlyPaths, "/proc/sys") || *s.Process.OOMScoreAdj != 0 {
			t.Errorf("masked %v, read-only %v", s.Linux.MaskedPaths, s.Linux.ReadonlyPaths)
		}
	})
	t.Run("with one it says", func(t *testing.T) {
		s := mustSpec(t, testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
			sc.MaskedPaths, sc.ReadonlyPaths, sc.NoNewPrivs = []string{"/m"}, []string{"/r"}, true
		})), img)
		if !slices.Equal(s.Linux.MaskedPaths, []string{"/m"}) || !slices.Equal(s.Linux.ReadonlyPaths, []string{"/r"}) || !s.Process.NoNewPrivileges {
			t.Errorf("%+v", s.Linux)
		}
	})
	t.Run("selinux", func(t *testing.T) {
		s := mustSpec(t, testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
			sc.SelinuxOptions = &v1.SELinuxOption{Type: "x_t", Level: "s0:c1,c2"}
		})), img)
		if s.Process.SelinuxLabel != "system_u:system_r:x_t:s0:c1,c2" || s.Linux.MountLabel == "" {
			t.Errorf("label %q, of files %q", s.Process.SelinuxLabel, s.Linux.MountLabel)
		}
	})
	t.Run("selinux, the sandbox's level", func(t *testing.T) {
		for want, o := range map[string]*v1.SELinuxOption{
			"system_u:system_r:container_t:s0:c3,c4": nil, "system_u:system_r:x_t:s0:c3,c4": {Type: "x_t"}, "system_u:system_r:container_t:s0:c7,c8": {Level: "s0:c7,c8"},
		} {
			ask := testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) { sc.SelinuxOptions = o }))
			ask.sandbox.Config.FileLabel = "system_u:object_r:container_file_t:s0:c3,c4"
			files := "system_u:object_r:container_file_t:" + strings.SplitN(want, ":", 4)[3]
			if s := mustSpec(t, ask, img); s.Process.SelinuxLabel != want || s.Linux.MountLabel != files {
				t.Errorf("%v: label %q, of files %q", o, s.Process.SelinuxLabel, s.Linux.MountLabel)
			}
		}
		ask := testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) { sc.Privileged = true }))
		ask.sandbox.Config.FileLabel = "system_u:object_r:container_file_t:s0:c3,c4"
		if process, files, err := ask.labels(); process+files != "" || err != nil {
			t.Errorf("privileged: %q, %q, %v", process, files, err)
		}
	})
	t.Run("apparmor", func(t *testing.T) {
		for want, sc := range map[string]*v1.LinuxContainerSecurityContext{
			"mine":  {Apparmor: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "mine"}},
			"older": {ApparmorProfile: "localhost/older"},
			"":      {Apparmor: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}},
		} {
			if s := mustSpec(t, testAsk(t, security(func(to *v1.LinuxContainerSecurityContext) {
				to.Apparmor, to.ApparmorProfile = sc.GetApparmor(), sc.GetApparmorProfile() //nolint:staticcheck // older clients send it
			})), img); s.Process.ApparmorProfile != want {
				t.Errorf("profile %q, want %q", s.Process.ApparmorProfile, want)
			}
		}
		for name, sc := range map[string]*v1.LinuxContainerSecurityContext{
			"none": {}, "default": {Apparmor: &v1.SecurityProfile{}}, "older default": {ApparmorProfile: "runtime/default"},
		} {
			if got := apparmor(sc); got != ocispec.DefaultProfile {
				t.Errorf("%s: profile %q", name, got)
			}
		}
		for name, sc := range map[string]*v1.LinuxContainerSecurityContext{
			"unconfined": {Apparmor: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}}, "older unconfined": {ApparmorProfile: "unconfined"},
			"privileged": {Privileged: true, Apparmor: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "mine"}},
		} {
			if got := apparmor(sc); got != "" {
				t.Errorf("%s: profile %q", name, got)
			}
		}
	})
	t.Run("a program that is not root keeps only what is ambient", func(t *testing.T) {
		s := mustSpec(t, testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
			sc.RunAsUser = &v1.Int64Value{Value: 1000}
			sc.Capabilities = &v1.Capability{AddAmbientCapabilities: []string{"NET_ADMIN"}}
		})), img)
		if c := s.Process.Capabilities; !slices.Equal(c.Effective, []string{"CAP_NET_ADMIN"}) || len(c.Bounding) != 15 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("privileged", func(t *testing.T) {
		s := mustSpec(t, testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) {
			sc.Privileged, sc.MaskedPaths = true, []string{"/m"}
			sc.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}
		})), img)
		sys := s.Mounts[slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/sys" })]
		if len(s.Linux.MaskedPaths) != 0 || s.Linux.Seccomp != nil || !slices.Contains(sys.Options, "rw") {
			t.Errorf("masked %v, seccomp %v, /sys %v", s.Linux.MaskedPaths, s.Linux.Seccomp, sys.Options)
		}
	})
	seccomp := func(p *v1.SecurityProfile, text string) (*specs.Spec, error) {
		a := testAsk(t, security(func(sc *v1.LinuxContainerSecurityContext) { sc.Seccomp = p }))
		a.seccomp = []byte(text)
		return specOf(t, a, img)
	}
	if s, err := seccomp(nil, ""); err != nil || s.Linux.Seccomp != nil {
		t.Errorf("no profile is unconfined: %v, %v", s.Linux.Seccomp, err)
	}
	if s, err := seccomp(&v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}, ""); err != nil || s.Linux.Seccomp != nil {
		t.Errorf("unconfined: %v, %v", s.Linux.Seccomp, err)
	}
	if s, err := seccomp(&v1.SecurityProfile{}, ""); err != nil || s.Linux.Seccomp == nil || len(s.Linux.Seccomp.Syscalls) == 0 {
		t.Errorf("runtime default: %v, %v", s, err)
	}
	local := &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "/p.json"}
	if s, err := seccomp(local, `{"defaultAction":"SCMP_ACT_ALLOW"}`); err != nil || s.Linux.Seccomp.DefaultAction != specs.ActAllow {
		t.Errorf("localhost: %v, %v", s, err)
	}
	if _, err := seccomp(local, `{`); !errdefs.IsInvalidArgument(err) {
		t.Errorf("broken profile: %v", err)
	}
	if _, err := seccomp(&v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "p.json"}, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("relative profile: %v", err)
	}
}

func TestMounts(t *testing.T) {
	img := &imagespec.ImageConfig{Cmd: []string{"x"}}
	s := mustSpec(t, testAsk(t, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{
			{HostPath: "/h/deep", ContainerPath: "/data/a/b", Readonly: true, MountOptions: []string{"noexec"}},
			{HostPath: "/h", ContainerPath: "data/", Propagation: v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{HostPath: "/hosts", ContainerPath: "/etc/hosts"},
			{HostPath: "/s", ContainerPath: "/sys", Readonly: true, RecursiveReadOnly: true},
			{HostPath: "/m", ContainerPath: "/mapped", UidMappings: []*v1.IDMapping{{HostId: 1, Length: 2}}, GidMappings: []*v1.IDMapping{{HostId: 1, Length: 2}}},
		}
	}), img)
	find := func(dest string) specs.Mount {
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
		if i < 0 {
			t.Fatalf("no mount at %s", dest)
		}
		return s.Mounts[i]
	}
	if m := find("/data"); m.Source != "/h" || !slices.Contains(m.Options, "rslave") {
		t.Errorf("%v", m)
	}
	if m := find("/data/a/b"); !slices.Contains(m.Options, "ro") || !slices.Contains(m.Options, "noexec") {
		t.Errorf("%v", m)
	}
	if m := find("/sys"); m.Type != "bind" || !slices.Contains(m.Options, "rro") {
		t.Errorf("%v", m)
	}
	if m := find("/mapped"); len(m.UIDMappings) != 1 || len(m.GIDMappings) != 1 {
		t.Errorf("%v", m)
	}
	order := func(dest string) int {
		return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
	}
	if order("/data") > order("/data/a/b") {
		t.Error("a child is mounted before its parent")
	}
	if s.Linux.RootfsPropagation != "rslave" {
		t.Errorf("root propagation %q", s.Linux.RootfsPropagation)
	}

	for name, m := range map[string]*v1.Mount{
		"image volume":       {ContainerPath: "/v", Image: &v1.ImageSpec{Image: "x"}},
		"no target":          {HostPath: "/h"},
		"relative source":    {HostPath: "h", ContainerPath: "/v"},
		"no source":          {ContainerPath: "/v"},
		"rro, writable":      {HostPath: "/h", ContainerPath: "/v", RecursiveReadOnly: true},
		"rro, bidirectional": {HostPath: "/h", ContainerPath: "/v", RecursiveReadOnly: true, Readonly: true, Propagation: v1.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		"rro, from the host": {HostPath: "/h", ContainerPath: "/v", RecursiveReadOnly: true, Readonly: true, Propagation: v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		"odd propagation":    {HostPath: "/h", ContainerPath: "/v", Propagation: 9},
		"odd option":         {HostPath: "/h", ContainerPath: "/v", MountOptions: []string{"suid"}},
	} {
		if _, err := specOf(t, testAsk(t, func(c *v1.ContainerConfig) { c.Mounts = []*v1.Mount{m} }), img); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := testAsk(t, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{HostPath: "/h", ContainerPath: "/v", Readonly: true, RecursiveReadOnly: true}}
	})
	old.runtime = core.RuntimeFeatures{}
	if _, err := specOf(t, old, img); !errdefs.IsInvalidArgument(err) {
		t.Errorf("rro on a runtime without: %v", err)
	}
}

func TestBadContainersAreRefused(t *testing.T) {
	for name, change := range map[string]func(*v1.CreateContainerRequest){
		"no config":   func(r *v1.CreateContainerRequest) { r.Config = nil },
		"no sandbox":  func(r *v1.CreateContainerRequest) { r.PodSandboxId = "" },
		"no metadata": func(r *v1.CreateContainerRequest) { r.Config.Metadata = nil },
		"no image":    func(r *v1.CreateContainerRequest) { r.Config.Image = nil },
		"windows": func(r *v1.CreateContainerRequest) {
			r.Config.Linux, r.Config.Windows = nil, &v1.WindowsContainerConfig{}
		},
		"target without an id": namespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET}),
		"another's network":    namespaces(&v1.NamespaceOption{Network: v1.NamespaceMode_TARGET}),
		"the node's network":   namespaces(&v1.NamespaceOption{Network: v1.NamespaceMode_NODE}),
		"the node's pids":      namespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_NODE}),
		"own ipc in a shared":  namespaces(&v1.NamespaceOption{Ipc: v1.NamespaceMode_CONTAINER}),
		"log outside":          func(r *v1.CreateContainerRequest) { r.Config.LogPath = "../../etc/cron.d/x" },
		"stop signal":          func(r *v1.CreateContainerRequest) { r.Config.StopSignal = 99 },
		"oom score":            resourcesOf(&v1.LinuxContainerResources{OomScoreAdj: 2000}),
		"negative memory":      resourcesOf(&v1.LinuxContainerResources{MemoryLimitInBytes: -2}),
		"swap below memory":    resourcesOf(&v1.LinuxContainerResources{MemoryLimitInBytes: 10, MemorySwapLimitInBytes: 5}),
		"cpuset":               resourcesOf(&v1.LinuxContainerResources{CpusetCpus: "0;1"}),
		"huge page size":       resourcesOf(&v1.LinuxContainerResources{HugepageLimits: []*v1.HugepageLimit{{PageSize: "../2MB"}}}),
		"cgroup file":          resourcesOf(&v1.LinuxContainerResources{Unified: map[string]string{"../cgroup.procs": "1"}}),
	} {
		t.Run(name, func(t *testing.T) {
			a := testAsk(t)
			change(a.req)
			err := checkContainer(a.req)
			if err == nil {
				_, err = a.config()
			}
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func namespaces(o *v1.NamespaceOption) func(*v1.CreateContainerRequest) {
	return func(r *v1.CreateContainerRequest) { r.Config.Linux.SecurityContext.NamespaceOptions = o }
}

func resourcesOf(res *v1.LinuxContainerResources) func(*v1.CreateContainerRequest) {
	return func(r *v1.CreateContainerRequest) { r.Config.Linux.Resources = res }
}

func TestDevices(t *testing.T) {
	list, rules, err := readDevices(&v1.ContainerConfig{Devices: []*v1.Device{{HostPath: "/dev/null", ContainerPath: "/dev/nothing", Permissions: "rw"}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Path != "/dev/nothing" || list[0].Type != "c" || list[0].Major != 1 || list[0].Minor != 3 || rules[0].Access != "rw" {
		t.Errorf("%+v, %+v", list, rules)
	}
	a := testAsk(t)
	a.devices, a.rules = list, rules
	s := mustSpec(t, a, &imagespec.ImageConfig{Cmd: []string{"x"}})
	if rules := s.Linux.Resources.Devices; len(rules) != 2 || rules[0].Allow || rules[0].Access != "rwm" || !rules[1].Allow || len(s.Linux.Devices) != 1 {
		t.Errorf("rules %+v", rules)
	}
	for name, dev := range map[string]*v1.Device{
		"missing": {HostPath: "/dev/not-there", ContainerPath: "/d"}, "no device": {HostPath: "/etc/passwd", ContainerPath: "/d"},
		"permissions": {HostPath: "/dev/null", ContainerPath: "/d", Permissions: "rx"}, "relative": {HostPath: "dev/null", ContainerPath: "/d"},
	} {
		if _, _, err := readDevices(&v1.ContainerConfig{Devices: []*v1.Device{dev}}, false); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPrivilegedWithoutHostDevices: all capabilities, but only the requested devices.
func TestPrivilegedWithoutHostDevices(t *testing.T) {
	cfg := &v1.ContainerConfig{
		Linux:   &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{Privileged: true}},
		Devices: []*v1.Device{{HostPath: "/dev/null", ContainerPath: "/dev/nothing", Permissions: "rw"}},
	}
	for bare, want := range map[bool]int{true: 1, false: 2} {
		list, rules, err := readDevices(cfg, bare)
		if err != nil || len(rules) != want || bare && len(list) != 1 || !bare && len(list) < 2 {
			t.Errorf("bare %t: %d devices, %d rules, %v", bare, len(list), len(rules), err)
		}
	}
}

// TestLevelsOfLandlockComeFromTheNearestAnnotation: the container's own, its pod's for the container, its pod's for all.
func TestLevelsOfLandlockComeFromTheNearestAnnotation(t *testing.T) {
	for _, c := range []struct {
		want     string
		own, pod map[string]string
	}{
		{"", nil, map[string]string{"longshore.landlock/other": "no-network-bind"}},
		{"no-network-bind", nil, map[string]string{core.LandlockAnnotation: "no-network-bind"}},
		{"read-only-system", nil, map[string]string{core.LandlockAnnotation: "no-network-bind", core.LandlockAnnotation + "/c": "read-only-system"}},
		{"no-network-connect", map[string]string{core.LandlockAnnotation: "no-network-connect"}, map[string]string{core.LandlockAnnotation + "/c": "read-only-system"}},
	} {
		a := testAsk(t, func(cfg *v1.ContainerConfig) { cfg.Annotations, cfg.Command = c.own, []string{"sh"} })
		a.req.SandboxConfig = &v1.PodSandboxConfig{Annotations: c.pod}
		if got := mustSpec(t, a, nil).Annotations[core.LandlockAnnotation]; got != c.want {
			t.Errorf("container %v, pod %v: %q", c.own, c.pod, got)
		}
	}
}
