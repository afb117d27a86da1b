package rootfs_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// users makes a user namespace in a fork, as the keeper does.
func users(_ context.Context, uids, gids []specs.LinuxIDMapping, _ ...specs.LinuxNamespaceType) ([]*os.File, error) {
	convert := func(from []specs.LinuxIDMapping) (m plan.IDMap) {
		for _, r := range from {
			m = append(m, plan.IDRange{Inside: r.ContainerID, Outside: r.HostID, Size: r.Size})
		}
		return m
	}
	fds, err := fork.Namespaces(0, convert(uids), convert(gids), "user")
	if err != nil {
		return nil, err
	}
	return []*os.File{os.NewFile(uintptr(fds[0]), "user")}, nil
}

// TestLayersAreSeenThroughAUserNamespace: one set of layers on the disk, owned by root, has the
// right owners in each root filesystem.
func TestLayersAreSeenThroughAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := rootfs.New(rootfs.Options{Users: users})
		for _, n := range []int{1, 3, 120} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				// On a disk: a tmpfs maps no owners before Linux 6.3.
				dir := fmt.Sprintf("%s/images/%s", t.TempDir(), strings.Repeat("long", 20))
				var lower []string
				for i := range n {
					l := fmt.Sprintf("%s/layers/%s%d", dir, strings.Repeat("x", 60), i)
					mkdir(t, l)
					if err := os.WriteFile(fmt.Sprintf("%s/f%d", l, i), []byte("x"), 0o644); err != nil {
						t.Fatal(err)
					}
					if err := os.Chown(fmt.Sprintf("%s/f%d", l, i), i, 2*i); err != nil {
						t.Fatal(err)
					}
					lower = append(lower, l)
				}
				mkdir(t, dir+"/upper")
				mkdir(t, dir+"/work")
				if err := os.Chown(dir+"/upper", 100000, 200000); err != nil {
					t.Fatal(err)
				}
				m := core.Mount{
					Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + dir + "/upper", "workdir=" + dir + "/work", "lowerdir=" + strings.Join(lower, ":"), "index=off"},
					UIDs: []core.IDRange{{Container: 0, Host: 100000, Size: 65536}}, GIDs: []core.IDRange{{Container: 0, Host: 200000, Size: 65536}},
				}
				root := "/run/mapped"
				if err := r.Mount(t.Context(), root, []core.Mount{m}, false); n > 100 && errdefs.IsNotImplemented(err) && strings.Contains(err.Error(), "lowerdir+") {
					t.Skipf("kernel without lowerdir+: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					var st unix.Stat_t
					f := fmt.Sprintf("%s/f%d", root, i)
					if err := unix.Stat(f, &st); err != nil || st.Uid != uint32(100000+i) || st.Gid != uint32(200000+2*i) {
						t.Fatalf("%s is %d:%d's, %v", f, st.Uid, st.Gid, err)
					}
				}
				// Copied up it keeps its owner; the layer stays as it was.
				if err := os.WriteFile(root+"/f0", []byte("y"), 0o644); err != nil {
					t.Fatal(err)
				}
				var up, low unix.Stat_t
				if err := unix.Stat(dir+"/upper/f0", &up); err != nil || up.Uid != 100000 || up.Gid != 200000 {
					t.Errorf("copied up: %d:%d, %v", up.Uid, up.Gid, err)
				}
				if err := unix.Stat(lower[0]+"/f0", &low); err != nil || low.Uid != 0 {
					t.Errorf("the layer: %d, %v", low.Uid, err)
				}
				for range 2 {
					if err := r.Unmount(t.Context(), root); err != nil {
						t.Error(err)
					}
				}
				if left, err := r.Mounted(t.Context(), root); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		}
		if err := rootfs.New(rootfs.Options{}).Mount(t.Context(), "/run/none", []core.Mount{{Type: "overlay", UIDs: []core.IDRange{{Size: 1}}}}, false); !errdefs.IsNotImplemented(err) {
			t.Errorf("without anybody who makes user namespaces: %v", err)
		}
	})
}

// TestMappedLayersStayInSightOnASharedMount: on most nodes everything is mounted shared, and mounts
// over a copy of a mount must not hide the original.
func TestMappedLayersStayInSightOnASharedMount(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir() // on a disk: a tmpfs maps no owners before Linux 6.3
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{"/layers/1", "/upper", "/work"} {
			mkdir(t, dir+d)
		}
		r := rootfs.New(rootfs.Options{Users: users})
		ids := []core.IDRange{{Container: 0, Host: 100000, Size: 65536}}
		m := core.Mount{
			Type: "overlay", Source: "overlay", UIDs: ids, GIDs: ids,
			Options: []string{"lowerdir=" + dir + "/layers/1", "upperdir=" + dir + "/upper", "workdir=" + dir + "/work", "index=off"},
		}
		if err := r.Mount(t.Context(), "/run/target", []core.Mount{m}, false); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir + "/layers/1"); err != nil {
			t.Errorf("the layers are hidden: %v", err)
		}
		if err := r.Unmount(t.Context(), "/run/target"); err != nil {
			t.Fatal(err)
		}
		if left, err := r.Mounted(t.Context(), dir); err != nil || len(left) != 1 {
			t.Errorf("mounts at the layers: %q, %v", left, err)
		}
	})
}
