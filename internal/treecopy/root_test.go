package treecopy

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// packed returns the entries of a packed root as texts: NAME=content, NAME->target for links, NAME/ for directories, each with
// its extended attributes.
func packed(t *testing.T, root *os.File, ids IDs, emptied ...string) (list []string) {
	t.Helper()
	var out bytes.Buffer
	if err := PackRoot(&out, root, emptied, ids); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(list)
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		text := h.Name
		switch h.Typeflag {
		case tar.TypeReg:
			text += "=" + string(body)
		case tar.TypeLink, tar.TypeSymlink:
			text += "->" + h.Linkname
		}
		for _, name := range []string{"user.x", "security.capability"} {
			if v, ok := h.PAXRecords["SCHILY.xattr."+name]; ok {
				text += fmt.Sprintf(" %s=%d", name, len(v))
			}
		}
		list = append(list, text)
	}
}

// TestPackRoot checks that the tar has hard links and names of any bytes, and no content of some files.
func TestPackRoot(t *testing.T) {
	root, dir := testRoot(t, map[string]string{"etc/hosts": "of the engine", "etc/passwd": "root", "data/a": "x", "d\xff/f\xfe": "odd", "link": "->etc"})
	for _, link := range [][2]string{{"data/a", "data/b"}, {"data/a", "data/c"}, {"etc/hosts", "etc/names"}} {
		if err := os.Link(filepath.Join(dir, link[0]), filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"./", "data/", "data/a=x", "data/b->data/a", "data/c->data/a", "d\xff/", "d\xff/f\xfe=odd", "etc/", "etc/hosts=", "etc/names=of the engine", "etc/passwd=root", "link->etc"}
	slices.Sort(want)
	if got := packed(t, root, IDs{}, "/etc/hosts", "/none"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPackRootHasAttributes checks that the tar has the attributes of users, and capabilities unless the ids are others.
func TestPackRootHasAttributes(t *testing.T) {
	root, dir := testRoot(t, map[string]string{"d/f": "1"})
	long := bytes.Repeat([]byte("v"), 1000)
	capability := []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for _, a := range []struct {
		path, name string
		value      []byte
	}{{"d", "user.x", []byte("dir")}, {"d/f", "user.x", long}, {"d/f", "security.capability", capability}} {
		err := unix.Lsetxattr(filepath.Join(dir, a.path), a.name, a.value, 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
			t.Skipf("%s: %v", a.name, err) // the file system has none, or only root may set it
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, want := packed(t, root, IDs{}), []string{"./", "d/ user.x=3", "d/f=1 user.x=1000 security.capability=20"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	mapped := IDs{UIDs: []specs.LinuxIDMapping{{HostID: 1000, Size: 1}}}
	if got, want := packed(t, root, mapped), []string{"./", "d/ user.x=3", "d/f=1 user.x=1000"}; !slices.Equal(got, want) {
		t.Errorf("with other ids: got %q, want %q", got, want)
	}
}

// TestCopiesHaveNamesOfAnyBytes copies a directory with a name that is not UTF-8.
func TestCopiesHaveNamesOfAnyBytes(t *testing.T) {
	from, _ := testRoot(t, map[string]string{"d/\xff/f": "1"})
	to, dir := testRoot(t, nil)
	if err := copyTo(from, "/d", to, "/", false); err != nil || tree(t, dir) != "d/ d/\xff/ d/\xff/f=1" {
		t.Errorf("%q, %v", tree(t, dir), err)
	}
}
