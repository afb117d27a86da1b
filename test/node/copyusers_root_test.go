package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// statOf returns a file's owner, group and mode.
func statOf(t *testing.T, path string) (uid, gid, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid, st.Gid, st.Mode & 0o7777
}

// TestCopyWithAUserNamespace: a file copied into a container with a user namespace belongs to its root, or
// with -a to the user of that number there. A file copied out has the owners that the container sees, and
// no bits that give their rights on the node. Capabilities of files stay behind.
func TestCopyWithAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		const prepare = `mkdir /made && for d in /made /data; do cp /bin/busybox $d/root && chmod 6755 $d/root && cp /bin/busybox $d/user && chown 5:6 $d/user && chmod 6755 $d/user; done; touch /ready; `
		v.must(t, "run", "-d", "--name", "runs", "--userns", "private", "-v", "one:/data", v.image, "/bin/sh", "-c", prepare+"exec sleep 1000")
		v.must(t, "run", "--name", "ended", "--userns", "private", "-v", "two:/data", v.image, "/bin/sh", "-c", prepare)
		roottest.Eventually(t, "it is ready", func() bool { _, err := v.CLI("exec", "runs", "/bin/cat", "/ready"); return err == nil })
		dir := t.TempDir()
		// A program of another user of the node, and one with a capability.
		theirs, able := filepath.Join(dir, "theirs"), filepath.Join(dir, "able")
		for _, p := range []string{theirs, able} {
			if err := os.WriteFile(p, []byte("x"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(theirs, 1000, 1001); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(theirs, 0o6755); err != nil {
			t.Fatal(err)
		}
		const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		if err := unix.Setxattr(able, "security.capability", []byte(netRaw), 0); err != nil {
			t.Fatal(err)
		}
		for _, c := range []string{"runs", "ended"} {
			for _, place := range []string{"/made", "/data"} {
				for _, x := range []struct {
					file     string
					flag     []string
					uid, gid uint32
				}{{"root", nil, 0, 0}, {"root", []string{"-a"}, 0, 0}, {"user", nil, 0, 0}, {"user", []string{"-a"}, 5, 6}} {
					out := filepath.Join(dir, "out")
					v.must(t, append(append([]string{"cp"}, x.flag...), c+":"+place+"/"+x.file, out)...)
					if uid, gid, mode := statOf(t, out); uid != x.uid || gid != x.gid || mode != 0o755 {
						t.Errorf("%s of %s with %v: %d:%d, mode %o", place+"/"+x.file, c, x.flag, uid, gid, mode)
					}
					if err := os.Remove(out); err != nil {
						t.Fatal(err)
					}
				}
				v.must(t, "cp", theirs, c+":"+place+"/mine")
				v.must(t, "cp", "-a", theirs, c+":"+place+"/kept")
				v.must(t, "cp", "-a", able, c+":"+place+"/able")
			}
		}
		// As the containers' programs see it.
		v.must(t, "start", "ended")
		v.must(t, "run", "-d", "--name", "looks", "--userns", "private", "--volumes-from", "ended", v.image, "/bin/sleep", "1000")
		const look = "cd /data; stat -c '%n %u:%g %a' mine kept"
		const want = "mine 0:0 755\nkept 1000:1001 6755"
		for c, line := range map[string]string{"runs": look + "; cd /made; stat -c '%n %u:%g %a' mine kept", "looks": look} {
			if got := strings.TrimSpace(v.must(t, "exec", c, "/bin/sh", "-c", line)); got != want && got != want+"\n"+want {
				t.Errorf("%s sees %q", c, got)
			}
		}
		back := filepath.Join(dir, "made")
		v.must(t, "cp", "-a", "ended:/made", back)
		for name, want := range map[string][2]uint32{"mine": {0, 0}, "kept": {1000, 1001}} {
			if uid, gid, mode := statOf(t, filepath.Join(back, name)); uid != want[0] || gid != want[1] || mode != 0o755 {
				t.Errorf("%s of ended comes back as %d:%d, mode %o", name, uid, gid, mode)
			}
		}
		if n, err := unix.Getxattr(filepath.Join(back, "able"), "security.capability", nil); err == nil {
			t.Errorf("a copy has capabilities, %d bytes", n)
		}
		// A user that the namespace does not have is refused by number.
		if err := os.Chown(theirs, 70000, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := v.CLI("cp", "-a", theirs, "runs:/made/none"); err == nil || !strings.Contains(err.Error(), "has no user 70000") {
			t.Errorf("a user that is not mapped: %v", err)
		}
		// The agent's own files are root's as before.
		v.must(t, "run", "--name", "plain", v.image, "/bin/true")
		v.must(t, "cp", theirs, "plain:/mine")
		v.must(t, "cp", "-a", "plain:/mine", filepath.Join(dir, "plain"))
		if uid, gid, _ := statOf(t, filepath.Join(dir, "plain")); uid != 0 || gid != 0 {
			t.Errorf("a copy of a container without a user namespace belongs to %d:%d", uid, gid)
		}
		v.must(t, "rm", "-f", "runs", "ended", "looks", "plain")
		v.Check()
	})
}
