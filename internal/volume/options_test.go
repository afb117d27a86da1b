package volume_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/volume"
)

func options(typ, device, o string) map[string]string {
	m := map[string]string{"type": typ, "device": device}
	if o != "" {
		m["o"] = o
	}
	return m
}

// TestOptionsAreWhatIsMounted: the mount of each volume's options, names of servers resolved.
func TestOptionsAreWhatIsMounted(t *testing.T) {
	for name, tc := range map[string]struct {
		options map[string]string
		want    core.Mount
	}{
		"tmpfs":                 {options("tmpfs", "tmpfs", "size=1m,uid=7,nofail"), core.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"size=1m", "uid=7"}}},
		"bind by none":          {options("none", "/srv", "bind"), core.Mount{Type: "bind", Source: "/srv", Options: []string{"bind", "bind"}}},
		"recursive bind":        {options("none", "/srv", "ro, rbind"), core.Mount{Type: "bind", Source: "/srv", Options: []string{"ro", "rbind"}}},
		"bind by type":          {options("bind", "/srv", ""), core.Mount{Type: "bind", Source: "/srv", Options: []string{"bind"}}},
		"nfs, address":          {options("nfs", ":/x", "addr=10.0.0.7,vers=4.2"), core.Mount{Type: "nfs", Source: ":/x", Options: []string{"addr=10.0.0.7", "vers=4.2"}}},
		"nfs, name":             {options("nfs", ":/x", "addr=localhost"), core.Mount{Type: "nfs", Source: ":/x", Options: []string{"addr=127.0.0.1"}}},
		"nfs, name as device":   {options("nfs4", "localhost:/x", "rw"), core.Mount{Type: "nfs4", Source: "localhost:/x", Options: []string{"rw", "addr=127.0.0.1"}}},
		"nfs, v6 as device":     {options("nfs", "[fd00::1]:/x", ""), core.Mount{Type: "nfs", Source: "[fd00::1]:/x", Options: []string{"addr=fd00::1"}}},
		"cifs":                  {options("cifs", "//localhost/s", "username=u,password=p"), core.Mount{Type: "cifs", Source: "//localhost/s", Options: []string{"username=u", "password=p", "addr=127.0.0.1"}}},
		"cifs, address":         {options("cifs", "//nas/s", "ip=10.0.0.7"), core.Mount{Type: "cifs", Source: "//nas/s", Options: []string{"ip=10.0.0.7"}}},
		"another filesystem":    {options("ext4", "/dev/sdb1", "noatime"), core.Mount{Type: "ext4", Source: "/dev/sdb1", Options: []string{"noatime"}}},
		"what only mount reads": {options("ext4", "/dev/sdb1", "_netdev,noauto,user"), core.Mount{Type: "ext4", Source: "/dev/sdb1"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := volume.New(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: tc.options}); err != nil {
				t.Fatal(err)
			}
			m, err := l.Source(t.Context(), core.OwnerCLI, "v")
			if err != nil || m.Type != tc.want.Type || m.Source != tc.want.Source || !slices.Equal(m.Options, tc.want.Options) {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	l, err := volume.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]map[string]string{
		"unknown key":          {"type": "tmpfs", "device": "tmpfs", "size": "1"},
		"no device":            {"type": "tmpfs"},
		"no type":              {"device": "/x"},
		"o alone":              {"o": "ro"},
		"type of a path":       options("../x", "x", ""),
		"none without bind":    options("none", "/x", "ro"),
		"relative bind":        options("none", "x", "bind"),
		"a line break":         options("tmpfs", "tmpfs", "size=1\nx"),
		"a zero":               options("tmpfs", "tm\x00pfs", ""),
		"too many":             options("tmpfs", "tmpfs", strings.Repeat("a,", 65)),
		"too long":             options("tmpfs", "tmpfs", strings.Repeat("a", 4001)),
		"remount":              options("tmpfs", "tmpfs", "remount"),
		"our own option":       options("none", "/x", "bind,x-longshore.below=/"),
		"nfs without a path":   options("nfs", "server", ""),
		"nfs without a server": options("nfs", ":/x", "ro"),
		"cifs without a share": options("cifs", "//server", "username=u"),
		"cifs with a password": options("cifs", "//u:p@server/s", ""),
		"cifs credentials":     options("cifs", "//server/s", "credentials=/etc/c"),
	} {
		if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: o}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, err := l.List(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAServerWithoutAnAddressMayHaveOneLater(t *testing.T) {
	l, err := volume.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: options("nfs", "nowhere.invalid:/x", "")}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Source(t.Context(), core.OwnerCLI, "v"); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}

// TestPasswordsAreInTheRecordAlone: the record has them for the mount, and only root reads it.
func TestPasswordsAreInTheRecordAlone(t *testing.T) {
	dir := t.TempDir()
	l, err := volume.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	asked := options("cifs", "//127.0.0.1/s", "username=u,password=hunter2,tail,vers=3.0,secret=hunter2")
	v, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: asked})
	if err != nil {
		t.Fatal(err)
	}
	if v.Options["o"] != "username=u,password=<hidden>,vers=3.0,secret=<hidden>" || v.Path != "" {
		t.Errorf("%+v", v)
	}
	again, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: asked})
	if !errdefs.IsAlreadyExists(err) {
		t.Errorf("the same again: %v", err)
	}
	other := maps.Clone(asked)
	other["o"] = "password=hunter3"
	_, differs := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v", Options: other})
	if !errdefs.IsFailedPrecondition(differs) {
		t.Errorf("other options: %v", differs)
	}
	if err := l.Filled(t.Context(), core.OwnerCLI, "v"); err != nil {
		t.Fatal(err)
	}
	got, err := l.Get(t.Context(), core.OwnerCLI, "v")
	if err != nil || !got.Filled {
		t.Errorf("%+v, %v", got, err)
	}
	all, err := l.List(t.Context(), core.OwnerCLI)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal([]any{v, again, got, all, differs.Error()})
	if err != nil || strings.Contains(string(shown), "hunter") {
		t.Errorf("%s, %v", shown, err)
	}
	if m, err := l.Source(t.Context(), core.OwnerCLI, "v"); err != nil || !slices.Contains(m.Options, "password=hunter2") {
		t.Errorf("%+v, %v", m, err)
	}
	st, err := os.Stat(filepath.Join(dir, "cli/v/volume.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cli/v/_data")); !os.IsNotExist(err) {
		t.Errorf("a directory that nothing is in: %v", err)
	}
}

func TestAVolumeWithoutOptionsHasNoSource(t *testing.T) {
	l, err := volume.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(t.Context(), core.OwnerCLI, core.VolumeConfig{Name: "v"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Source(t.Context(), core.OwnerCLI, "v"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("%v", err)
	}
	if _, err := l.Source(t.Context(), core.OwnerCLI, "w"); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// FuzzOptions: with any options, a volume is made or refused, and a secret's value is never shown.
func FuzzOptions(f *testing.F) {
	for _, o := range []string{"", "size=1m", "bind", "username=u,password=p", "addr=10.0.0.1,vers=4", "password=a,b=c", ",,,=,x=,=y"} {
		f.Add("tmpfs", "tmpfs", o)
		f.Add("nfs", ":/x", o)
		f.Add("cifs", "//10.0.0.1/s", o)
		f.Add("none", "/x", o)
	}
	f.Fuzz(func(t *testing.T, typ, device, o string) {
		const planted = "planted-password"
		asked := map[string]string{"type": typ, "device": device, "o": o + ",password=" + planted}
		err := volume.Check(asked)
		shown := volume.Mask(asked)
		if strings.Contains(shown["o"], planted) && !strings.Contains(o, planted) {
			t.Fatalf("%q shows a password", shown["o"])
		}
		if err != nil && (!errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), planted)) {
			t.Fatalf("%v", err)
		}
	})
}
