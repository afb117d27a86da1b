package image_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/roottest"
)

// tree describes every file below dir in words: mode, owner, size, content,
// extended attributes, time, device number and the names it shares.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	links := map[uint64][]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		s := fmt.Sprintf("mode=%o uid=%d gid=%d", st.Mode, st.Uid, st.Gid)
		if rel != "." {
			s += fmt.Sprintf(" mtime=%d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" size=%d sha256=%x", st.Size, sha256.Sum256(body))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += " -> " + target
		case unix.S_IFCHR, unix.S_IFBLK:
			s += fmt.Sprintf(" rdev=%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		found[rel] = s + xattrs(t, path)
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			links[st.Ino] = append(links[st.Ino], rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range links {
		slices.Sort(names)
		if len(names) == 1 {
			continue // a later layer has deleted the other name
		}
		for _, n := range names {
			found[n] += " linked=" + strings.Join(names, ",")
		}
	}
	return found
}

func xattrs(t *testing.T, path string) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		if len(name) == 0 || bytes.HasPrefix(name, []byte("trusted.overlay.")) {
			continue
		}
		value := make([]byte, 64<<10)
		m, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf(" %s=%x", name, value[:m]))
	}
	sort.Strings(list)
	return strings.Join(list, "")
}

// mounted mounts a checkout and returns the mount point.
func mounted(t *testing.T, co core.Checkout) string {
	t.Helper()
	target := t.TempDir()
	for _, m := range co.Mounts {
		var flags uintptr
		var data []string
		for _, o := range m.Options {
			switch o {
			case "rbind":
				flags |= unix.MS_BIND | unix.MS_REC
			case "ro":
				flags |= unix.MS_RDONLY
			case "rw":
			default:
				data = append(data, o)
			}
		}
		if err := unix.Mount(m.Source, target, m.Type, flags, strings.Join(data, ",")); err != nil {
			t.Fatalf("mount %+v: %v", m, err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return target
}

// fill makes the first layer of the image that both unpack.
func fill(t *testing.T, root string) {
	t.Helper()
	body := func(path, text string, mode os.FileMode) {
		t.Helper()
		write(t, filepath.Join(root, path), text)
		if err := os.Chmod(filepath.Join(root, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	body("etc/passwd", "root:x:0:0::/:/bin/sh\n", 0o644)
	body("etc/conf.d/one", "one", 0o600)
	body("etc/conf.d/two", "two", 0o640)
	body("usr/bin/tool", "#!/bin/sh\n", 0o755|os.ModeSetuid)
	body("usr/bin/group", "#!/bin/sh\n", 0o755|os.ModeSetgid)
	body("opt/gone/file", "to be deleted", 0o644)
	body("opt/dir-to-file/x", "x", 0o644)
	body("opt/file-to-dir", "file", 0o644)
	body("opt/opaque/hidden/deep", "hidden", 0o644)
	body("opt/opaque/also", "hidden", 0o644)
	body("data/base", "linked", 0o644)
	body("name with space/ünïcode\n", "strange", 0o644)
	body(strings.Repeat("long-directory-name/", 12)+strings.Repeat("f", 200), "long", 0o644)
	do(t, os.Mkdir(filepath.Join(root, "tmp"), 0o755))
	do(t, os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
	do(t, os.Link(filepath.Join(root, "data/base"), filepath.Join(root, "data/twin")))
	do(t, os.Link(filepath.Join(root, "data/base"), filepath.Join(root, "etc/triplet")))
	do(t, os.Symlink("../etc/passwd", filepath.Join(root, "usr/relative")))
	do(t, os.Symlink("/nowhere", filepath.Join(root, "usr/absolute")))
	do(t, unix.Mkfifo(filepath.Join(root, "data/fifo"), 0o620))
	do(t, unix.Mknod(filepath.Join(root, "data/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	do(t, unix.Mknod(filepath.Join(root, "data/disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 200))))
	do(t, os.Lchown(filepath.Join(root, "data"), 1000, 2000))
	do(t, os.Lchown(filepath.Join(root, "etc/conf.d/one"), 65534, 100000))
	do(t, os.Lchown(filepath.Join(root, "usr/absolute"), 12, 34))
	do(t, unix.Setxattr(filepath.Join(root, "etc/passwd"), "user.note", []byte("words\x00and zero"), 0))
	do(t, unix.Setxattr(filepath.Join(root, "etc"), "user.dir", []byte("on a directory"), 0))
	// cap_net_raw+ep
	do(t, unix.Setxattr(filepath.Join(root, "usr/bin/group"), "security.capability",
		[]byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	sparse, err := os.OpenFile(filepath.Join(root, "data/sparse"), os.O_CREATE|os.O_WRONLY, 0o644)
	do(t, err)
	_, err = sparse.WriteAt([]byte("end"), 8<<20)
	do(t, err)
	do(t, sparse.Close())
	old := []unix.Timespec{{Sec: 86400}, {Sec: 86400, Nsec: 0}}
	do(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, "usr/relative"), old, unix.AT_SYMLINK_NOFOLLOW))
	do(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, "data/sparse"), old, 0))
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// change makes the second layer: deletions, replacements, links into the first.
func change(t *testing.T, root string) {
	t.Helper()
	do(t, os.RemoveAll(filepath.Join(root, "opt/gone")))
	do(t, os.Remove(filepath.Join(root, "etc/conf.d/two")))
	do(t, os.RemoveAll(filepath.Join(root, "opt/dir-to-file")))
	write(t, filepath.Join(root, "opt/dir-to-file"), "now a file")
	do(t, os.Remove(filepath.Join(root, "opt/file-to-dir")))
	write(t, filepath.Join(root, "opt/file-to-dir/inside"), "now a directory")
	write(t, filepath.Join(root, "usr/bin/new"), "new")
	do(t, os.Link(filepath.Join(root, "usr/bin/new"), filepath.Join(root, "usr/bin/newer")))
	do(t, os.Chmod(filepath.Join(root, "usr"), 0o711))
	do(t, os.Lchown(filepath.Join(root, "etc/passwd"), 7, 8))
	do(t, os.Remove(filepath.Join(root, "usr/absolute")))
	do(t, os.Symlink("elsewhere", filepath.Join(root, "usr/absolute")))
}

// buildImage makes an OCI layout with umoci and returns its skopeo name.
func buildImage(t *testing.T) (layout string) {
	t.Helper()
	dir := t.TempDir()
	layout = filepath.Join(dir, "layout")
	run(t, dir, "umoci", "init", "--layout", layout)
	run(t, dir, "umoci", "new", "--image", layout+":t")
	run(t, dir, "umoci", "unpack", "--image", layout+":t", "bundle")
	fill(t, filepath.Join(dir, "bundle/rootfs"))
	run(t, dir, "umoci", "repack", "--refresh-bundle", "--image", layout+":t", "bundle")
	change(t, filepath.Join(dir, "bundle/rootfs"))
	run(t, dir, "umoci", "repack", "--refresh-bundle", "--image", layout+":t", "bundle")
	write(t, filepath.Join(dir, "opaque/fresh"), "all there is")
	run(t, dir, "umoci", "insert", "--opaque", "--image", layout+":t", filepath.Join(dir, "opaque"), "/opt/opaque")
	run(t, dir, "umoci", "insert", "--image", layout+":t", filepath.Join(dir, "opaque/fresh"), "/etc/conf.d/inserted")
	run(t, dir, "umoci", "insert", "--whiteout", "--image", layout+":t", "/usr/bin/newer")
	return layout
}

// unpacked returns the tree that umoci unpacks.
func unpacked(t *testing.T, layout string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, "umoci", "unpack", "--image", layout+":t", "bundle")
	return tree(t, filepath.Join(dir, "bundle/rootfs"))
}

func checkTree(t *testing.T, s *image.Store, id core.ID, img core.Image, want map[string]string) {
	t.Helper()
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: id, Image: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tree(t, mounted(t, co))); diff != "" {
		t.Errorf("tree differs (-umoci +ours):\n%s", diff)
	}
}

func TestTreeEqualsUmociUnpack(t *testing.T) { roottest.Run(t, treeEqualsUmociUnpack) }

func treeEqualsUmociUnpack(t *testing.T) {
	t.Helper()
	need(t, "umoci", "skopeo", "docker-registry")
	unix.Umask(0o022)
	layout := buildImage(t)
	want := unpacked(t, layout)
	if len(want) < 30 {
		t.Fatalf("umoci unpacked %d files only", len(want))
	}
	reg := startRegistry(t, false, false)
	for name, flags := range map[string][]string{
		"oci-gzip":    {"--format=oci", "--dest-compress-format=gzip"},
		"docker-gzip": {"--format=v2s2", "--dest-compress-format=gzip"},
		"oci-zstd":    {"--format=oci", "--dest-compress-format=zstd"},
	} {
		t.Run(name, func(t *testing.T) {
			ref := reg.push(t, "oci:"+layout+":t", "tree/"+name+":v1", flags...)
			s := open(t, t.TempDir())
			img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, s, "c1", img, want)
		})
	}
	t.Run("docker-archive", func(t *testing.T) {
		archive := filepath.Join(t.TempDir(), "image.tar")
		run(t, t.TempDir(), "skopeo", "copy", "--quiet", "--insecure-policy", "oci:"+layout+":t", "docker-archive:"+archive+":tree/archive:v1")
		importAndCheck(t, archive, "docker.io/tree/archive:v1", want)
	})
	t.Run("oci-archive", func(t *testing.T) {
		archive := filepath.Join(t.TempDir(), "image.tar")
		run(t, t.TempDir(), "skopeo", "copy", "--quiet", "--insecure-policy", "oci:"+layout+":t", "oci-archive:"+archive+":tree/archive:v1")
		importAndCheck(t, archive, "docker.io/tree/archive:v1", want)
	})
}

func importAndCheck(t *testing.T, archive, name string, want map[string]string) {
	t.Helper()
	f, err := os.Open(archive)
	do(t, err)
	defer func() { _ = f.Close() }()
	s := open(t, t.TempDir())
	list, err := s.Import(t.Context(), "cli", f, core.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || !slices.Equal(list[0].Names, []string{name}) {
		t.Fatalf("imported %+v, want %s", list, name)
	}
	checkTree(t, s, "c1", list[0], want)
}
