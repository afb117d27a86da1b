package ocispec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/ocispec"
)

const (
	twoUsersPasswd = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/srv/app:/bin/sh\nother:x:1001:1001::/home/other:/bin/sh\n"
	twoUsersGroup  = "root:x:0:\nwheel:x:10:root\napp:x:1000:\nvideo:x:44:app\nother:x:1001:\naudio:x:29:other\n"
)

func twoUsers() ocispec.UserFiles {
	return ocispec.UserFiles{Passwd: []byte(twoUsersPasswd), Group: []byte(twoUsersGroup)}
}

// TestWhatFollowsFromAUserIsThatOfTheProcess has a row for each user of a container and each user
// of an exec: the exec gets the same as a container of that user.
func TestWhatFollowsFromAUserIsThatOfTheProcess(t *testing.T) {
	files := twoUsers()
	bounding, ambient := []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETUID"}, []string{"CAP_KILL"}
	made := func(user string, nnp, withAmbient bool) *specs.Process {
		t.Helper()
		u, err := files.LookUp(user)
		if err != nil {
			t.Fatal(err)
		}
		u.AddGroup(77) // a requested group
		p := &specs.Process{User: u.User, NoNewPrivileges: nnp, Env: ocispec.BaseEnv(u.Home, "h", false), Capabilities: ocispec.CapabilitySets(bounding)}
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 9, Soft: 9}}
		if withAmbient {
			p.Capabilities.Ambient, p.Capabilities.Inheritable = ambient, ambient
		}
		ocispec.ForUser(p)
		return p
	}
	describe := func(p *specs.Process) string {
		groups := slices.Sorted(slices.Values(p.User.AdditionalGids))
		return fmt.Sprintf("%d:%d %v %v eff=%v bnd=%v amb=%v nnp=%v %v", p.User.UID, p.User.GID, groups, p.Env[len(p.Env)-1], p.Capabilities.Effective,
			p.Capabilities.Bounding, p.Capabilities.Ambient, p.NoNewPrivileges, p.Rlimits)
	}
	for _, user := range []string{"root", "app", "other", "4711"} {
		for _, execUser := range []string{"root", "app", "other", "4711"} {
			for _, nnp := range []bool{false, true} {
				for _, withAmbient := range []bool{false, true} {
					got, want := made(user, nnp, withAmbient), made(execUser, nnp, withAmbient)
					before := describe(got)
					to, err := files.LookUp(execUser)
					if err != nil {
						t.Fatal(err)
					}
					files.SwitchUser(got, to)
					for _, p := range []*specs.Process{got, want} { // HOME's place is of no matter
						i := slices.IndexFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") })
						p.Env = append(slices.Delete(slices.Clone(p.Env), i, i+1), p.Env[i])
					}
					if describe(got) != describe(want) {
						t.Errorf("%s, exec as %s:\n got %s\nwant %s\nfrom %s", user, execUser, describe(got), describe(want), before)
					}
				}
			}
		}
	}
}

func TestAHomeThatWasAskedForStays(t *testing.T) {
	files := twoUsers()
	root, err := files.LookUp("root")
	if err != nil {
		t.Fatal(err)
	}
	p := &specs.Process{User: specs.User{UID: 1000}, Env: []string{"HOME=/data", "A=1"}}
	if files.SwitchUser(p, root); !slices.Contains(p.Env, "HOME=/data") {
		t.Errorf("environment %q", p.Env)
	}
	files.AddHome(p)
	if !slices.Equal(p.Env, []string{"HOME=/data", "A=1"}) {
		t.Errorf("environment %q", p.Env)
	}
	for uid, want := range map[uint32]string{0: "/root", 1000: "/srv/app", 4711: "/"} {
		p := &specs.Process{User: specs.User{UID: uid}, Env: []string{"HOMER=1"}}
		if files.AddHome(p); !slices.Equal(p.Env, []string{"HOMER=1", "HOME=" + want}) {
			t.Errorf("user %d: environment %q", uid, p.Env)
		}
	}
}

func TestUserFilesOfAMountAreReadInPlaceOfTheRoots(t *testing.T) {
	dir, mounted := t.TempDir(), filepath.Join(t.TempDir(), "users")
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{filepath.Join(dir, "etc/passwd"): "root:x:0:0::/of/image:\n", mounted: "root:x:0:0::/of/mount:\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for want, mounts := range map[string][]specs.Mount{
		"/of/image": {{Destination: "/etc/passwd", Source: "tmpfs", Type: "tmpfs"}, {Destination: "/etc", Source: mounted, Options: []string{"bind"}}},
		"/of/mount": {{Destination: "/etc//passwd", Source: mounted, Options: []string{"rbind", "ro"}}},
	} {
		f, err := ocispec.ReadUserFilesBelow(root, mounts)
		if err != nil || f.Home(0) != want {
			t.Errorf("home %q, %v; want %q", f.Home(0), err, want)
		}
	}
	if _, err := ocispec.ReadUserFilesBelow(root, []specs.Mount{{Destination: "/etc/passwd", Source: "/nonexistent/file", Type: "bind"}}); err == nil {
		t.Error("a source that is not there is no error")
	}
}
