package ocicli_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/ocispec"
)

// users: home, groups and capabilities follow the process's own user, in execs too.
func users(t *testing.T, m *machine) {
	etc := m.bundle + "/rootfs/etc"
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(etc) }()
	for file, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/srv/app:/bin/sh\n", "group": "root:x:0:\nwheel:x:10:root\nvideo:x:44:app\n",
	} {
		if err := os.WriteFile(etc+"/"+file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const script = "echo $(grep CapEff /proc/self/status) home=$HOME groups=$(id -G)"
	const all, none = "CapEff: 00000000a80425fb", "CapEff: 0000000000000000"
	for _, user := range []uint32{0, 1000} {
		for _, nnp := range []bool{false, true} {
			s := m.spec(fmt.Sprintf("%s >/tmp/main%d%v; sleep 1000", script, user, nnp))
			s.Process.User, s.Process.NoNewPrivileges = specs.User{UID: user, GID: user, AdditionalGids: map[uint32][]uint32{0: {10, 77}, 1000: {44, 77}}[user]}, nnp
			ocispec.ForUser(s.Process)
			if err := os.Chmod(m.bundle+"/rootfs/tmp", 0o777); err != nil {
				t.Fatal(err)
			}
			m.write(t, s)
			m.must(t, "run", "--detach", "a")
			for _, c := range []struct{ user, want string }{
				{"", map[uint32]string{0: all + " home=/root groups=0 10 77", 1000: none + " home=/srv/app groups=1000 44 77"}[user]},
				{"0:0", all + " home=/root groups=0 10 77"},
				{"1000:1000", none + " home=/srv/app groups=1000 44 77"},
				{"4711:5", none + " home=/ groups=5 77"},
			} {
				args := []string{"exec"}
				if c.user != "" {
					args = append(args, "--user", c.user)
				}
				got := strings.TrimSpace(m.must(t, append(args, "a", "sh", "-c", script)...))
				if got != c.want {
					t.Errorf("user %d, exec as %q, no_new_privs %v: %q, want %q", user, c.user, nnp, got, c.want)
				}
			}
			if got := m.must(t, "exec", "--user", "0:0", "--env", "HOME=/asked", "a", "sh", "-c", "echo $HOME"); got != "/asked\n" {
				t.Errorf("HOME that was asked for: %q", got)
			}
			main := m.must(t, "exec", "a", "cat", fmt.Sprintf("/tmp/main%d%v", user, nnp))
			if want := fmt.Sprintf("home=%s ", map[uint32]string{0: "/root", 1000: "/srv/app"}[user]); !strings.Contains(main, want) {
				t.Errorf("main process of user %d: %q, want %s", user, main, want)
			}
			m.must(t, "delete", "--force", "a")
			m.gone(t, "a")
		}
	}
}

// links: a mount onto a link of the root that leads to nothing is made where the link leads, inside.
func links(t *testing.T, m *machine) {
	root := m.bundle + "/rootfs"
	before, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { // other cases have the same root
		after, _ := os.ReadDir(root)
		for _, e := range after {
			if !slices.ContainsFunc(before, func(b os.DirEntry) bool { return b.Name() == e.Name() }) {
				_ = os.RemoveAll(filepath.Join(root, e.Name()))
			}
		}
	}()
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(beneathtest.Outside, 0o777), os.WriteFile(dir+"/file", []byte("mounted\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	mount := func(s *specs.Spec, d beneathtest.Dangling) {
		if err := d.Make(root); err != nil {
			t.Fatal(err)
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: d.Mount, Type: "bind", Source: d.Source(dir), Options: []string{"bind", "ro"}})
	}
	list, script, want := beneathtest.DanglingMounts()
	s := m.spec(script)
	for _, d := range list {
		mount(s, d)
	}
	m.write(t, s)
	if out := m.must(t, "run", "a"); out != want {
		t.Errorf("%q, want %q", out, want)
	}
	m.gone(t, "a")
	for _, d := range beneathtest.DanglingRefused() {
		s := m.spec("true")
		mount(s, d)
		m.write(t, s)
		if r := m.do(t, "run", "a"); r.status == 0 {
			t.Errorf("%s was not refused: %q", d.Name, r.out)
		}
		m.gone(t, "a")
	}
	if left, err := os.ReadDir(beneathtest.Outside); err != nil || len(left) > 0 {
		t.Errorf("made outside of the root: %v, %v", left, err)
	}
}
