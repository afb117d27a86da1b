package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/roottest"
)

// layers makes n layers with one file each and returns the options of an
// overlay of them.
func layers(t *testing.T, base string, n int) []string {
	t.Helper()
	var lower []string
	for i := range n {
		dir := filepath.Join(base, fmt.Sprint(i), "fs")
		mkdir(t, dir)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		lower = append(lower, dir)
	}
	mkdir(t, filepath.Join(base, "u"))
	mkdir(t, filepath.Join(base, "w"))
	return []string{"index=off", "lowerdir=" + strings.Join(lower, ":"), "upperdir=" + base + "/u", "workdir=" + base + "/w"}
}

// mounted returns the mounts below the test's own /run. The host's mounts below its /run, such as
// /run/netns, are covered by it.
func mounted(t *testing.T, r *rootfs.Roots) []string {
	t.Helper()
	all, err := r.Mounted(t.Context(), "/run")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p string) bool {
		_, err := os.Lstat(p)
		return p == "/run" || errors.Is(err, fs.ErrNotExist)
	})
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestOverlayOf120Layers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{})
		wd, _ := os.Getwd()
		for name, base := range map[string]string{
			"short names":                       "/run/l",
			"one page passed, common directory": "/run/" + strings.Repeat("d", 100),
		} {
			t.Run(name, func(t *testing.T) { overlay(t, r, layers(t, base, 120), 120) })
		}
		if now, _ := os.Getwd(); now != wd {
			t.Errorf("working directory became %s", now)
		}
	})
}

func TestOverlayWithoutACommonDirectory(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		// Long names in two trees: only fsconfig(2) takes them.
		a := layers(t, "/run/a/"+strings.Repeat("a", 60), 60)
		if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		b := layers(t, "/mnt/b/"+strings.Repeat("b", 60), 60)
		a[1] += ":" + strings.TrimPrefix(b[1], "lowerdir=")
		err := overlayErr(t, a)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			t.Skipf("kernel without lowerdir+: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

func overlayErr(t *testing.T, options []string) error {
	t.Helper()
	r := rootfs.New(rootfs.Options{})
	err := r.Mount(t.Context(), "/run/t", []core.Mount{{Type: "overlay", Source: "overlay", Options: options}}, false)
	return errors.Join(err, r.Unmount(context.Background(), "/run/t"))
}

func overlay(t *testing.T, r *rootfs.Roots, options []string, n int) {
	t.Helper()
	target := "/run/root"
	m := []core.Mount{{Type: "overlay", Source: "overlay", Options: options}}
	if err := r.Mount(t.Context(), target, m, false); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(target)
	if err != nil || len(entries) != n {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if err := os.WriteFile(target+"/new", nil, 0o644); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := r.Unmount(t.Context(), target); err != nil {
			t.Fatal(err)
		}
	}
	if got := mounted(t, r); len(got) != 0 {
		t.Errorf("still mounted: %v", got)
	}
	if err := r.Mount(t.Context(), target, m, true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target+"/new", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only root: %v", err)
	}
	if err := r.Unmount(t.Context(), target); err != nil {
		t.Error(err)
	}
}

func TestBindKeepsFlagsAndStaysInTheRoot(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{})
		for _, d := range []string{"/run/src/sub", "/run/vol", "/run/outside"} {
			mkdir(t, d)
		}
		if err := os.Symlink("/run/outside", "/run/src/escape"); err != nil {
			t.Fatal(err)
		}
		bind := core.Mount{Type: "bind", Source: "/run/src", Options: []string{"rbind", "ro"}}
		if err := r.Mount(t.Context(), "/run/root", []core.Mount{bind, {Type: "tmpfs", Source: "tmpfs", Target: "sub", Options: []string{"size=4k", "nodev"}}}, false); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/run/root/x", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to a read-only bind: %v", err)
		}
		if err := os.WriteFile("/run/src/x", nil, 0o644); err != nil {
			t.Errorf("the source became read-only too: %v", err)
		}
		if err := os.WriteFile("/run/root/sub/x", nil, 0o644); err != nil {
			t.Errorf("write to the tmpfs: %v", err)
		}
		if got, _ := r.Mounted(t.Context(), "/run/root"); len(got) != 2 {
			t.Errorf("mounted %v", got)
		}
		// Mounts below a directory that is none itself are found.
		if err := r.Unmount(t.Context(), "/run/root"); err != nil {
			t.Fatal(err)
		}
		err := r.Mount(t.Context(), "/run/root", []core.Mount{bind, {Type: "tmpfs", Source: "tmpfs", Target: "/escape"}}, false)
		if !errdefs.IsNotFound(err) {
			t.Errorf("mount through a symlink that leaves the root: %v", err)
		}
		if got := mounted(t, r); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
	})
}

func TestUnmountFindsWhatIsBelow(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{})
		for _, d := range []string{"/run/dir/a", "/run/dir/b", "/run/dir2"} {
			mkdir(t, d)
			if err := unix.Mount("tmpfs", d, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
		}
		busy, err := os.Create("/run/dir/a/open")
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Close()
		if err := r.Unmount(t.Context(), "/run/dir"); err != nil {
			t.Fatal(err)
		}
		if got := mounted(t, r); len(got) != 1 || got[0] != "/run/dir2" {
			t.Errorf("left: %v", got)
		}
		if err := r.Unmount(t.Context(), "/"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("unmount of /: %v", err)
		}
		if err := r.Unmount(t.Context(), "/run/not/there"); err != nil {
			t.Error(err)
		}
	})
}

func TestMountSaysWhatIsWrong(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{})
		for name, c := range map[string]struct {
			m  core.Mount
			is func(error) bool
		}{
			"gone source":   {core.Mount{Type: "bind", Source: "/run/gone"}, errdefs.IsNotFound},
			"no such type":  {core.Mount{Type: "nonesuch", Source: "x"}, errdefs.IsNotImplemented},
			"broken option": {core.Mount{Type: "overlay", Source: "x", Options: []string{"lowerdir=/run", "upside=down"}}, errdefs.IsInvalidArgument},
		} {
			if err := r.Mount(t.Context(), "/run/root", []core.Mount{c.m}, false); !c.is(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := mounted(t, r); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
	})
}

// TestFilesystemsByTheirOptions: the mounts of a volume's options, and the kernel's words on those
// that it refuses.
func TestFilesystemsByTheirOptions(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{})
		mount := func(m core.Mount) error { return r.Mount(t.Context(), "/run/v", []core.Mount{m}, false) }
		if err := mount(core.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"size=1m", "uid=7", "mode=0710", "nosuid", "nodev", "noexec", "nosymfollow"}}); err != nil {
			t.Fatal(err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs("/run/v", &st); err != nil || st.Blocks*uint64(st.Bsize) != 1<<20 || st.Flags&(unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOEXEC) != unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOEXEC {
			t.Errorf("%+v, %v", st, err)
		}
		var own unix.Stat_t
		if err := unix.Stat("/run/v", &own); err != nil || own.Uid != 7 || own.Mode&0o7777 != 0o710 {
			t.Errorf("owner %d, mode %o, %v", own.Uid, own.Mode, err)
		}
		if err := r.Unmount(t.Context(), "/run/v"); err != nil {
			t.Fatal(err)
		}
		if err := mount(core.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"ro"}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/run/v/f", nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("a read-only filesystem is written to: %v", err)
		}
		if err := r.Unmount(t.Context(), "/run/v"); err != nil {
			t.Fatal(err)
		}
		err := mount(core.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"password=hunter2"}})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("an unknown option: %v", err)
		}
		if err := mount(core.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"size=many"}}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "size") {
			t.Errorf("a wrong value: %v", err)
		}
		if err := mount(core.Mount{Type: "nosuchfs", Source: "x"}); !errdefs.IsNotImplemented(err) {
			t.Errorf("an unknown filesystem: %v", err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Mount(over, "/run/v", []core.Mount{{Type: "tmpfs", Source: "tmpfs"}}, false); !errors.Is(err, context.Canceled) {
			t.Errorf("without a caller: %v", err)
		}
		if left := mounted(t, r); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
