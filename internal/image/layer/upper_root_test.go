package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/roottest"
)

// overlay mounts layers, nearest first, with an upper directory of its own, or read-only without.
func overlay(t *testing.T, upper string, lower ...string) string {
	t.Helper()
	at := t.TempDir()
	data, flags := "lowerdir="+strings.Join(lower, ":")+",index=off", uintptr(unix.MS_RDONLY)
	if upper != "" {
		work := t.TempDir()
		data, flags = data+",upperdir="+upper+",workdir="+work, 0
	}
	if err := unix.Mount("overlay", at, "overlay", flags, data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

// described says of each file all that an image keeps of it.
func described(t *testing.T, dir string) map[string]string {
	t.Helper()
	found, links := map[string]string{}, map[uint64][]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		s := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			body, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %d.%d %q", st.Mtim.Sec, st.Mtim.Nsec, body)
			if st.Nlink > 1 {
				links[st.Ino] = append(links[st.Ino], rel)
			}
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			s += " " + target
		case unix.S_IFCHR, unix.S_IFBLK:
			s += fmt.Sprintf(" %d", st.Rdev)
		}
		for _, name := range []string{"user.test", "security.capability"} {
			buf := make([]byte, 256)
			if n, err := unix.Lgetxattr(p, name, buf); err == nil {
				s += fmt.Sprintf(" %s=%x", name, buf[:n])
			}
		}
		found[rel] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range links {
		if len(names) > 1 {
			slices.Sort(names)
			for _, n := range names {
				found[n] += " with " + strings.Join(names, ",")
			}
		}
	}
	return found
}

// scribble changes a tree at random, as programs do.
func scribble(t *testing.T, root string, rnd *rand.Rand, steps int) {
	t.Helper()
	names := []string{"a", "b", "c", "new\nline", "\xff", "é"}
	some := func() string {
		p := root
		for range 1 + rnd.IntN(3) {
			p = filepath.Join(p, names[rnd.IntN(len(names))])
		}
		return p
	}
	for range steps {
		p := some()
		switch rnd.IntN(12) {
		case 0, 1:
			_ = os.MkdirAll(p, 0o700+fs.FileMode(rnd.IntN(64)))
		case 2, 3, 4:
			_ = os.WriteFile(p, bytes.Repeat([]byte{byte('a' + rnd.IntN(3))}, rnd.IntN(2000)), 0o640)
		case 5:
			_ = os.RemoveAll(p)
		case 6:
			_ = os.Symlink("../"+names[rnd.IntN(3)], p)
		case 7:
			_ = os.Link(some(), p)
		case 8:
			_ = os.Rename(some(), p)
		case 9:
			_ = os.Lchown(p, rnd.IntN(5), rnd.IntN(5))
		case 10:
			_ = unix.Lsetxattr(p, "user.test", []byte{byte(rnd.IntN(3))}, 0)
		case 11:
			_ = unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}
	}
}

// TestAPackedUpperIsTheSameTree changes an overlay of two layers at random, packs its upper, unpacks
// that as a layer, and compares the two trees, and the changes told with those of the trees.
func TestAPackedUpperIsTheSameTree(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if err := unix.Mount("tmpfs", os.TempDir(), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(30) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { samePacked(t, rand.New(rand.NewPCG(seed, 1))) })
		}
	})
}

func samePacked(t *testing.T, rnd *rand.Rand) {
	low, mid, upper, again := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	scribble(t, low, rnd, 60)
	scribble(t, overlay(t, mid, low), rnd, 60)
	before := described(t, overlay(t, "", mid, low))
	merged := overlay(t, upper, mid, low)
	scribble(t, merged, rnd, 80)
	want := described(t, merged)

	u := layer.Upper{Dir: upper, Lower: []string{mid, low}}
	var packed bytes.Buffer
	if err := u.Pack(t.Context(), &packed, layer.PackOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Apply(t.Context(), again, &packed, layer.Options{Lower: func(context.Context) ([]string, error) { return u.Lower, nil }}); err != nil {
		t.Fatal(err)
	}
	got := described(t, overlay(t, "", again, mid, low))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the layer makes another tree (- is what it was):\n%s", d)
	}

	told := map[string]layer.ChangeKind{}
	if err := u.Changes(t.Context(), func(c layer.Change) error { told[c.Path] = c.Kind; return nil }); err != nil {
		t.Fatal(err)
	}
	for p := range want {
		was, there := before[p]
		switch {
		case !there && told[p] != layer.Added:
			t.Errorf("%q was added, and is told as %q", p, told[p])
		case there && was != want[p] && p != "." && told[p] != layer.Changed && !strings.Contains(was+want[p], " with "):
			t.Errorf("%q was changed, and is told as %q: %s, %s", p, told[p], was, want[p])
		}
	}
	for _, p := range slices.Sorted(maps.Keys(before)) {
		if _, there := want[p]; !there && told[p] != layer.Deleted && want[filepath.Dir(p)] != "" && strings.HasPrefix(want[filepath.Dir(p)], "4") {
			t.Errorf("%q was deleted, and is told as %q", p, told[p])
		}
	}
	for p, kind := range told {
		_, was := before[p]
		_, is := want[p]
		if kind == layer.Added && (was || !is) || kind == layer.Deleted && (!was || is) || kind == layer.Changed && (!was || !is) {
			t.Errorf("%q is told as %q: it was there %t, and is %t", p, kind, was, is)
		}
	}
}

// TestHostileUppers: programs' entries there end the packing, or are packed, and lead nowhere.
func TestHostileUppers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if err := unix.Mount("tmpfs", os.TempDir(), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		pack := func(upper string, o layer.PackOptions) (string, error) {
			var out bytes.Buffer
			err := layer.Upper{Dir: upper, Mounts: map[string]bool{"mnt": true}}.Pack(t.Context(), &out, o)
			return out.String(), err
		}
		outside := t.TempDir()
		if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("of the host"), 0o600); err != nil {
			t.Fatal(err)
		}
		links := t.TempDir()
		for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "secret"), "proc": "/proc/self/environ"} {
			if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(links, "mnt"), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := pack(links, layer.PackOptions{}); err != nil || strings.Contains(out, "of the host") || strings.Contains(out, "mnt") {
			t.Errorf("links: %v, %q", err, out)
		}

		marker := t.TempDir()
		if err := os.WriteFile(filepath.Join(marker, ".wh.etc"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pack(marker, layer.PackOptions{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a name that marks a deletion: %v", err)
		}

		sparse := t.TempDir()
		f, err := os.Create(filepath.Join(sparse, "huge"))
		if err == nil {
			err = errors.Join(f.Truncate(1<<50), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if out, err := pack(sparse, layer.PackOptions{MaxBytes: 1 << 20}); !errdefs.IsResourceExhausted(err) || len(out) > 1<<16 {
			t.Errorf("a sparse file: %v, %d bytes", err, len(out))
		}

		deep, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		top := deep.Name()
		name := strings.Repeat("d", 200)
		for range 30 {
			if err := unix.Mkdirat(int(deep.Fd()), name, 0o755); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Openat(int(deep.Fd()), name, unix.O_DIRECTORY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_ = deep.Close()
			deep = os.NewFile(uintptr(fd), name)
		}
		_ = deep.Close()
		if _, err := pack(top, layer.PackOptions{}); !errdefs.IsResourceExhausted(err) {
			t.Errorf("a deep tree: %v", err)
		}

		mapped := t.TempDir()
		if err := os.WriteFile(filepath.Join(mapped, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		caps := append([]byte{1, 0, 0, 3}, make([]byte, 20)...) // revision 3, effective
		if err := errors.Join(os.Chown(filepath.Join(mapped, "f"), 100_005, 100_006), unix.Setxattr(filepath.Join(mapped, "f"), "security.capability", caps, 0)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		inside := func(uid, gid int) (int, int) { return uid - 100_000, gid - 100_000 }
		err = layer.Upper{Dir: mapped, Inside: inside}.Pack(t.Context(), &out, layer.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(&out); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			if h.Name != "f" {
				continue
			}
			if v := h.PAXRecords["SCHILY.xattr.security.capability"]; h.Uid != 5 || h.Gid != 6 || len(v) != 20 || v[3] != 2 {
				t.Errorf("%+v, capabilities %x", h, v)
			}
		}
	})
}
