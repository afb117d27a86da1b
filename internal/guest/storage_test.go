package guest

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// FuzzStorageOptions: bad options are invalid arguments. For a tmpfs only options of the table
// reach the kernel, and large pages have a size of one page at least.
func FuzzStorageOptions(f *testing.F) {
	for _, s := range []string{"", "size=64M,mode=1777,noexec", "fsgid=7", "fsgid=-1", "remount", "size=1,lowerdir=/etc", "pagesize=2Mi,size=4M", "pagesize=0,size=0", "size=99999999999G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		options := strings.Split(s, ",")
		flags, data, gid, err := tmpfsOptions(options)
		switch {
		case err != nil:
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: class of %v", s, err)
			}
		case flags&(unix.MS_REMOUNT|unix.MS_MOVE|unix.MS_SHARED) != 0 || gid < -1:
			t.Errorf("%q: flags %#x, group %d", s, flags, gid)
		default:
			for o := range strings.SplitSeq(data, ",") {
				if key, _, _ := strings.Cut(o, "="); o != "" && !slices.Contains([]string{"size", "mode", "nr_inodes", "nr_blocks", "huge", "uid", "gid", "mpol"}, key) {
					t.Errorf("%q: the kernel is given %q", s, o)
				}
			}
		}
		page, size, gid, err := hugeOptions(options)
		if err == nil && (page == 0 || size < page || gid < -1) {
			t.Errorf("%q: %d pages of %d, group %d", s, size, page, gid)
		}
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: class of %v", s, err)
		}
	})
}

// FuzzPlaces: no path leads out of the directory that it begins with.
func FuzzPlaces(f *testing.F) {
	for _, s := range []string{"/", "/run", "/run/a/b", "run", "/run/../etc", "//etc", "/run/./a", "/run/a/", "/\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		base, rel, err := splitPlace(s)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: class of %v", s, err)
			}
			return
		}
		again := strings.TrimSuffix(base, "/") + "/" + rel
		if s == "/" {
			again = strings.TrimSuffix(again, ".")
		}
		if again != s || strings.HasPrefix(rel, "/") || strings.Count(base, "/") != 1 {
			t.Errorf("%q is %q in %q", s, rel, base)
		}
		for part := range strings.SplitSeq(base[1:]+"/"+rel, "/") {
			if part == ".." {
				t.Errorf("%q is %q in %q", s, rel, base)
			}
		}
	})
}

// FuzzDiskNames: no name of a disk leads out of /dev or is a pattern.
func FuzzDiskNames(f *testing.F) {
	for _, s := range []string{"/dev/vda", "/dev/../etc", "/dev/", "/dev", "1:2", "1:*", "-1:0", "65536:0"} {
		f.Add(s)
	}
	d := disks{sysfs: "/nowhere", dev: "/nowhere"}
	f.Fuzz(func(t *testing.T, s string) {
		if path, err := d.namedDisk(t.Context(), s); err == nil {
			t.Errorf("%q is the disk %q where there is none", s, path)
		}
		if path, err := d.scsiDisk(t.Context(), s); err == nil {
			t.Errorf("%q is the disk %q where there is none", s, path)
		}
	})
}
