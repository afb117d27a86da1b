package granted

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
)

// TestAMountGivesNothingThatAnotherCovers: below a granted mount an ordinary container of the request would see the other mount.
func TestAMountGivesNothingThatAnotherCovers(t *testing.T) {
	bind := func(target, source string, options ...string) specs.Mount {
		return specs.Mount{Destination: target, Source: source, Type: "bind", Options: append([]string{"bind"}, options...)}
	}
	s := &specs.Spec{Mounts: []specs.Mount{
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		bind("/alloc", "/srv/alloc"), bind("/alloc/logs", "/srv/alloc/logs", "ro"), // the same directory, with less
		bind("/data", "/srv/data"), bind("/data/secret", "/srv/other"), // another one
		bind("/job/", "/srv/job"),
		{Destination: "/job/tmp", Type: "tmpfs", Source: "tmpfs"},
		bind("/free", "/srv/free"), bind("/freedom", "/srv/freedom", "ro"), // the name only begins alike
	}}
	mounts := mountsOf(s)
	has, c := rights(mounts), carried{spec: s, mounts: mounts}
	for name, want := range map[string]struct {
		rights grant.Rights
		cover  string
	}{
		"/alloc":       {grant.Read | grant.Execute, ""},
		"/alloc/logs":  {grant.Read | grant.Execute, ""},
		"/data":        {grant.AllRights, "/data/secret"},
		"/data/secret": {grant.AllRights, ""},
		"/job":         {grant.AllRights, "/job/tmp"},
		"/free":        {grant.AllRights, ""},
	} {
		if has[name] != want.rights || c.covering(name) != want.cover {
			t.Errorf("%s: %s, covered at %q", name, has[name], c.covering(name))
		}
	}
	if _, ok := has["/dev"]; ok {
		t.Error("a tmpfs of the container can be granted")
	}
	h := &opened{}
	defer h.close()
	if err := h.grant(grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read}, c); err == nil {
		t.Error("what another mount covers was granted")
	}
}

// TestAMountIsOpenedAsItsUserCould: a file that the container's user may not read or write is not
// open for it either.
func TestAMountIsOpenedAsItsUserCould(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"all": 0o666, "readable": 0o644, "private": 0o600, "grouped": 0o640} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(filepath.Join(dir, name), mode), os.Chown(filepath.Join(dir, name), 0, 77)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		access core.Access
		user   specs.User
		ok     bool
	}{
		"all": {core.AccessRead | core.AccessWrite, specs.User{UID: 12345, GID: 12345}, true}, "readable": {core.AccessRead, specs.User{UID: 12345, GID: 12345}, true},
		"./readable": {core.AccessRead | core.AccessWrite, specs.User{UID: 12345, GID: 12345}, false}, "private": {core.AccessRead, specs.User{UID: 12345, GID: 12345}, false},
		"./private": {core.AccessRead | core.AccessWrite, specs.User{}, true}, "grouped": {core.AccessRead, specs.User{UID: 12345, GID: 12345}, false},
		"./grouped": {core.AccessRead, specs.User{UID: 12345, GID: 77}, true}, "././grouped": {core.AccessRead, specs.User{UID: 12345, GID: 12345, AdditionalGids: []uint32{5, 77}}, true},
		".": {core.AccessRead, specs.User{UID: 12345, GID: 12345}, true},
	} {
		f, err := openMount(specs.Mount{Source: dir + "/" + name, Type: "bind", Options: []string{"bind"}}, c.access, c.user)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s for %+v: %v", name, c.user, err)
		}
		if err == nil {
			if _, lerr := f.Readdirnames(-1); name == "." && lerr == nil {
				t.Error("a directory that its user may not list is listed")
			}
			_ = f.Close()
		}
	}
	if got := unix.Geteuid(); got != 0 {
		t.Errorf("the test is user %d now", got)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "private")); err != nil {
		t.Errorf("the test has lost its rights: %v", err)
	}
}

// TestASecretIsOnlyWhatWasDelivered: by its name or path in the container, read as the container's user.
func TestASecretIsOnlyWhatWasDelivered(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"one/key": 0o644, "one/only": 0o644, "two/key": 0o644, "two/private": 0o600, "file": 0o644, "outside": 0o644} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"one/out": "../outside", "one/abs": filepath.Join(dir, "outside"), "one/in": "only"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	for target, source := range map[string]string{"/one": "one", "/two": "two", "/run/secrets/pw": "file", "/plain": "one"} {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: target, Source: filepath.Join(dir, source), Type: "bind"})
	}
	all := secretsOf(core.RuntimeCreate{Spec: s, UID: 12345, GID: 12345, Grants: core.GrantAsk{Secrets: []string{"/one", "/two/", "/run/secrets/pw", "/not/mounted"}}}, mountsOf(s))
	for name, want := range map[string]string{
		"only": "one/only", "/one/key": "one/key", "/two/key": "two/key", "pw": "file", "/run/secrets/pw": "file", "in": "one/only",
		"key": "", "private": "", "out": "", "abs": "", "nothing": "", "/plain/key": "", "/one": "", ".": "", "..": "", "../one/key": "", "/one/../two/key": "", "/etc/passwd": "", "other": "", "": "",
	} {
		f, err := all.copied(name)
		if want == "" {
			if err == nil {
				t.Errorf("%q was found", name)
				_ = f.Close()
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		b := make([]byte, 100)
		n, _ := f.Read(b)
		if _, err := f.Write([]byte("x")); err == nil || string(b[:n]) != want {
			t.Errorf("%q: %q, and it can be written: %v", name, b[:n], err)
		}
		_ = f.Close()
	}
}
