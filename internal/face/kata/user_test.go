package kata

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/ocispec"
)

func TestAProcessHasWhatItsOwnUserHas(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"passwd": "root:x:0:0::/root:\napp:x:1000:1000::/srv/app:\n", "group": "root:x:0:\nvideo:x:44:app\n"} {
		if err := os.WriteFile(filepath.Join(dir, "etc", file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	all := []string{"CAP_CHOWN"}
	for name, c := range map[string]struct {
		uid     uint32
		by      *katav1.StringUser
		env     []string
		home    string
		inForce []string
		groups  []uint32
	}{
		"a number":               {uid: 1000, home: "HOME=/srv/app", inForce: all},
		"root":                   {home: "HOME=/root", inForce: all},
		"a number without entry": {uid: 4711, home: "HOME=/", inForce: all},
		"a HOME of the spec":     {uid: 1000, env: []string{"HOME=/data"}, home: "HOME=/data", inForce: all},
		"a name for root's":      {by: &katav1.StringUser{Uid: "app"}, home: "HOME=/srv/app", groups: []uint32{1000, 44}},
		"root for a name's":      {uid: 1000, by: &katav1.StringUser{Uid: "root"}, home: "HOME=/root", inForce: all, groups: []uint32{0}},
	} {
		p := &specs.Process{User: specs.User{UID: c.uid}, Env: append([]string{"A=1"}, c.env...), Capabilities: ocispec.CapabilitySets(all)}
		if c.by != nil && c.uid != 0 {
			ocispec.ForUser(p)
		}
		if err := mainUser(p, c.by, root, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Contains(p.Env, c.home) || !slices.Equal(p.Capabilities.Effective, c.inForce) || !slices.Equal(p.User.AdditionalGids, c.groups) {
			t.Errorf("%s: %q, capabilities %v, groups %v", name, p.Env, p.Capabilities.Effective, p.User.AdditionalGids)
		}
	}
	for name, c := range map[string]struct {
		user specs.User
		want uint32
		fail bool
	}{
		"a username":                      {user: specs.User{Username: "app"}, want: 1000},
		"a username and its uid":          {user: specs.User{Username: "app", UID: 1000, GID: 44}, want: 1000},
		"a username and another's uid":    {user: specs.User{Username: "app", UID: 5}, fail: true},
		"a username that is not there":    {user: specs.User{Username: "nobody-here"}, fail: true},
		"a group, and root's username":    {user: specs.User{Username: "root", GID: 44}},
		"a uid and no username at all":    {user: specs.User{UID: 77}, want: 77},
		"root's username, and root's ids": {user: specs.User{Username: "root"}},
	} {
		p := &specs.Process{User: c.user, Capabilities: ocispec.CapabilitySets(all)}
		if err := mainUser(p, nil, root, nil); (err != nil) != c.fail || err == nil && (p.User.UID != c.want || c.user.GID != 0 && p.User.GID != c.user.GID) {
			t.Errorf("%s: %+v, %v", name, p.User, err)
		}
	}
	self := &specs.Process{}
	if err := execUser(self, nil, os.Getpid()); err != nil || len(self.Env) != 1 {
		t.Errorf("exec: %q, %v", self.Env, err)
	}
}
