package translate

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

// tmpfs is a tmpfs with options.
func tmpfs(options string) func(*swarmv1.Task, *swarmv1.ContainerSpec) {
	return mounts(&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{Options: options}})
}

// TestMountOptions: the results of mounts' options.
func TestMountOptions(t *testing.T) {
	ro := func(o *swarmv1.Mount_BindOptions) *swarmv1.Mount {
		return &swarmv1.Mount{Source: "/x", Target: "/a", Readonly: true, BindOptions: o}
	}
	for name, c := range map[string]struct {
		mount *swarmv1.Mount
		want  string
	}{
		"tmpfs":                 {&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a"}, "nosuid nodev noexec mode=1777"},
		"tmpfs of nothing":      {&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{Options: "null"}}, "nosuid nodev noexec mode=1777"},
		"tmpfs by docker":       {&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", TmpfsOptions: &swarmv1.Mount_TmpfsOptions{Options: `[["exec"],["uid","7"]]`}}, "nosuid nodev noexec mode=1777 exec uid=7"},
		"tmpfs by mount":        {&swarmv1.Mount{Type: swarmv1.Mount_TMPFS, Target: "/a", Readonly: true, TmpfsOptions: &swarmv1.Mount_TmpfsOptions{Options: "noatime,nr_inodes=1k,size=50%", SizeBytes: 9, Mode: 0o700}}, "nosuid nodev noexec ro size=9 mode=700 noatime nr_inodes=1k size=50%"},
		"bind":                  {&swarmv1.Mount{Source: "/x", Target: "/a"}, "rbind rprivate rw"},
		"read-only":             {ro(nil), "rbind rprivate rro"},
		"read-only at the top":  {ro(&swarmv1.Mount_BindOptions{Readonlynonrecursive: true}), "rbind rprivate ro"},
		"read-only for sure":    {ro(&swarmv1.Mount_BindOptions{Readonlyforcerecursive: true}), "rbind rprivate rro"},
		"read-only, one":        {ro(&swarmv1.Mount_BindOptions{Nonrecursive: true}), "bind rprivate ro"},
		"read-only, the node's": {ro(&swarmv1.Mount_BindOptions{Propagation: swarmv1.Mount_BindOptions_RSLAVE}), "rbind rslave ro"},
		"with a source to make": {&swarmv1.Mount{Source: "/x/y/", Target: "/a", BindOptions: &swarmv1.Mount_BindOptions{Createmountpoint: true}}, "rbind rprivate rw"},
	} {
		a, err := Read(task(mounts(c.mount)), theNode)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list, err := a.ownMounts()
		if err != nil || len(list) != 1 || strings.Join(list[0].Options, " ") != c.want {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
		if made := a.MissingSources(); name == "with a source to make" != slices.Equal(made, []string{"/x/y"}) {
			t.Errorf("%s: makes %v", name, made)
		}
	}
	a, err := Read(task(mounts(&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: "v", Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{
		Subpath: "x/y", DriverConfig: &swarmv1.Driver{Name: "local", Options: map[string]string{"type": "nfs", "device": ":/{{.Service.Name}}"}},
	}})), theNode)
	if err != nil {
		t.Fatal(err)
	}
	if v := a.volumes(); len(v) != 1 || v[0].SubPath != "x/y" || v[0].Options["device"] != ":/"+a.Swarm.GetServiceAnnotations().GetName() {
		t.Errorf("%+v", v)
	}
}

// TestLabels: SELinux' label is the requested one, and none when that is switched off.
func TestLabels(t *testing.T) {
	for _, c := range []struct {
		asked *swarmv1.Privileges_SELinuxContext
		want  *core.SELinux
	}{
		{nil, &core.SELinux{}},
		{&swarmv1.Privileges_SELinuxContext{Type: "web_t"}, &core.SELinux{Type: "web_t"}},
		{&swarmv1.Privileges_SELinuxContext{User: "u", Role: "r", Level: "s0:c1"}, &core.SELinux{User: "u", Role: "r", Level: "s0:c1"}},
		{&swarmv1.Privileges_SELinuxContext{Disable: true, Type: "web_t"}, nil},
	} {
		a, err := Read(task(func(_ *swarmv1.Task, s *swarmv1.ContainerSpec) {
			s.Privileges = &swarmv1.Privileges{SelinuxContext: c.asked}
		}), theNode)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := a.Sandbox(); err != nil || !reflect.DeepEqual(cfg.SELinux, c.want) {
			t.Errorf("%v: %+v, %v", c.asked, cfg.SELinux, err)
		}
	}
}

// TestProfiles: a task has the default AppArmor profile unless it asks for none.
func TestProfiles(t *testing.T) {
	for want, asked := range map[string]*swarmv1.Privileges{
		"longshore-default": nil, "": {Apparmor: &swarmv1.Privileges_AppArmorOpts{Mode: swarmv1.Privileges_AppArmorOpts_DISABLED}},
	} {
		a, err := Read(task(func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) { c.Privileges = asked }), theNode)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := a.base(); err != nil || s.Process.ApparmorProfile != want {
			t.Errorf("%v: profile %q, want %q, %v", asked, s.Process.ApparmorProfile, want, err)
		}
	}
}

// TestTemplatesOfFiles: secrets and configs with a templating driver are expanded, with each other
// and the task's variables.
func TestTemplatesOfFiles(t *testing.T) {
	golang := &swarmv1.Driver{Name: "golang"}
	file := func(name string) *swarmv1.FileTarget { return &swarmv1.FileTarget{Name: name} }
	a, err := Read(task(func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) {
		c.Env = []string{"USER=u-{{.Task.Slot}}"}
		c.Secrets = []*swarmv1.SecretReference{
			{SecretId: "1", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: file("pw")}}, {SecretId: "2", SecretName: "url", Target: &swarmv1.SecretReference_File{File: file("url")}},
		}
		c.Configs = []*swarmv1.ConfigReference{{ConfigId: "3", ConfigName: "conf", Target: &swarmv1.ConfigReference_File{File: file("/etc/conf")}}}
	}), theNode)
	if err != nil {
		t.Fatal(err)
	}
	slot := a.Node.ID
	if s := a.Swarm.GetSlot(); s > 0 {
		slot = strconv.FormatUint(s, 10)
	}
	got, err := a.Expand([]Content{{Data: []byte("{{raw}}")}, {Data: []byte(`{{env "USER"}}:{{secret "pw"}}`), Templating: golang}, {Data: []byte(`{{secret "url"}} on {{.Node.Hostname}}`), Templating: golang}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"{{raw}}", "u-" + slot + ":{{raw}}", `{{env "USER"}}:{{secret "pw"}} on ` + theNode.Hostname} {
		if string(got[i]) != want {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	const planted = "planted-secret"
	for text, want := range map[string]string{`{{secret "none"}}` + planted: "secret url: its template cannot be expanded (line 1): the task has no secret with that target", "{{" + planted + "}}": "secret url: its template cannot be expanded (line 1)"} {
		_, err := a.Expand([]Content{{}, {Data: []byte(text), Templating: golang}, {}})
		if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), planted) {
			t.Errorf("%v", err)
		}
	}
	if _, err := a.Expand([]Content{{}, {}, {Templating: &swarmv1.Driver{Name: "jinja"}}}); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "config conf") {
		t.Errorf("%v", err)
	}
}

// FuzzTmpfs: any options of a tmpfs are refused, or such as only a tmpfs has.
func FuzzTmpfs(f *testing.F) {
	for _, text := range []string{"null", "[]", `[["exec"],["uid","7"]]`, "size=1m,noatime", `[["mode","0700"]]`, "bind", "mpol=bind:0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words, err := tmpfsWords(text)
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Fatalf("%v", err)
		}
		for _, w := range words {
			if strings.ContainsAny(w, "\x00\n /\\") || w == "bind" || w == "remount" || err != nil {
				t.Fatalf("%q", w)
			}
		}
	})
}
