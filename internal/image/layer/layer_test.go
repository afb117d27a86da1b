package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/layer"
)

// sandbox returns a directory that contains the layer's directory and a file that must not be
// touched.
func sandbox(tb testing.TB) (dir, outside string) {
	tb.Helper()
	base := tb.TempDir()
	dir, outside = filepath.Join(base, "layer"), filepath.Join(base, "outside")
	if err := os.Mkdir(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir, outside
}

func apply(tb testing.TB, dir string, files []imagetest.File, lower ...string) (layer.Result, error) {
	tb.Helper()
	opts := layer.Options{Lower: func(context.Context) ([]string, error) { return lower, nil }}
	return layer.Apply(tb.Context(), dir, bytes.NewReader(imagetest.Tar(files)), opts)
}

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestNothingLeavesTheRoot(t *testing.T) {
	for name, files := range map[string][]imagetest.File{
		"dot dot":             {{Name: "../outside", Body: []byte("evil")}},
		"deep dot dot":        {{Name: "a/../../outside", Body: []byte("evil")}},
		"hidden dot dot":      {{Name: "/../outside", Body: []byte("evil")}},
		"symlink up":          {{Name: "up", Link: ".."}, {Name: "up/outside", Body: []byte("evil")}},
		"symlink chain":       {{Name: "a", Link: "b"}, {Name: "b", Link: "../.."}, {Name: "a/outside", Body: []byte("evil")}},
		"symlink to file":     {{Name: "f", Link: "../outside"}, {Name: "f", Body: []byte("evil")}},
		"hard link up":        {{Name: "h", Hard: "../outside"}, {Name: "h", Body: []byte("evil")}},
		"hard link by a link": {{Name: "up", Link: ".."}, {Name: "h", Hard: "up/outside"}},
		"whiteout up":         {{Name: "../.wh.outside"}},
		"whiteout by a link":  {{Name: "up", Link: ".."}, {Name: "up/.wh.outside"}},
		"whiteout of dot dot": {{Name: "a/"}, {Name: "a/.wh..."}},
		"opaque by a link":    {{Name: "up", Link: ".."}, {Name: "up/.wh..wh..opq"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := sandbox(t)
			before := listing(t, filepath.Dir(dir))
			_, err := apply(t, dir, files)
			t.Logf("error: %v", err)
			if got := read(t, outside); got != "untouched" {
				t.Errorf("outside file now says %q", got)
			}
			if after := listing(t, filepath.Dir(dir)); !slices.Equal(before, after) {
				t.Errorf("beside the layer: %v, was %v", after, before)
			}
			var st unix.Stat_t
			if err := unix.Stat(outside, &st); err != nil || st.Nlink != 1 {
				t.Errorf("outside file has %d links, %v", st.Nlink, err)
			}
			if err != nil && !errdefs.IsInvalidArgument(err) {
				t.Errorf("error %v, want InvalidArgument or none", err)
			}
		})
	}
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEscapesAreRefused(t *testing.T) {
	for name, files := range map[string][]imagetest.File{
		"dot dot":      {{Name: "../x"}},
		"hard link up": {{Name: "h", Hard: "../outside"}},
		"no target":    {{Name: "h", Hard: "nowhere"}},
		"file as root": {{Name: "."}},
	} {
		dir, _ := sandbox(t)
		_, err := apply(t, dir, files)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "unpack layer") {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func TestAbsoluteNamesAreTakenFromTheRoot(t *testing.T) {
	dir, _ := sandbox(t)
	if _, err := apply(t, dir, []imagetest.File{{Name: "/etc/x", Body: []byte("x")}, {Name: "l", Link: "/etc"}, {Name: "l/y", Body: []byte("y")}}); err != nil {
		t.Fatal(err)
	}
	if read(t, filepath.Join(dir, "etc/x")) != "x" || read(t, filepath.Join(dir, "etc/y")) != "y" {
		t.Error("not below the root")
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: trusted.* attributes")
	}
}

func opaque(t *testing.T, path string) bool {
	t.Helper()
	var buf [8]byte
	n, err := unix.Lgetxattr(path, "trusted.overlay.opaque", buf[:])
	if err != nil && !errors.Is(err, unix.ENODATA) {
		t.Fatal(err)
	}
	return err == nil && string(buf[:n]) == "y"
}

func whiteout(t *testing.T, path string) bool {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && fi.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0
}

func TestWhiteouts(t *testing.T) {
	needRoot(t)
	dir, _ := sandbox(t)
	_, err := apply(t, dir, []imagetest.File{
		{Name: "gone/"},
		{Name: "gone/.wh.file"},
		{Name: "fresh/"},
		{Name: "fresh/.wh..wh..opq"},
		{Name: "fresh/new"},
		{Name: ".wh.again"},
		{Name: "again/"},
		{Name: "again/x"}, // deleted, then created again
		{Name: "kept", Body: []byte("new")},
		{Name: ".wh.kept"}, // created, and the old one deleted
		{Name: ".wh.bare"},
		{Name: "bare/x"}, // deleted, then created again by implication
		{Name: "was-dir", Body: []byte("file")},
		{Name: "was-dir/.wh.child"}, // a file where a directory was
		{Name: ".wh..wh.plnk"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !whiteout(t, filepath.Join(dir, "gone/file")) {
		t.Error("gone/file is no whiteout")
	}
	for _, d := range []string{"fresh", "again", "bare"} {
		if !opaque(t, filepath.Join(dir, d)) {
			t.Errorf("%s is not opaque", d)
		}
	}
	if opaque(t, filepath.Join(dir, "gone")) {
		t.Error("gone is opaque")
	}
	if read(t, filepath.Join(dir, "kept")) != "new" || read(t, filepath.Join(dir, "was-dir")) != "file" {
		t.Error("this layer's own files went")
	}
	if _, err := os.Lstat(filepath.Join(dir, ".wh..wh.plnk")); err == nil {
		t.Error("aufs' bookkeeping was unpacked")
	}
	res, err := apply(t, mkdir(t), []imagetest.File{{Name: ".wh..wh..opq"}})
	if err != nil || !res.Opaque {
		t.Errorf("opaque root: %+v, %v", res, err)
	}
}

func mkdir(tb testing.TB) string {
	tb.Helper()
	dir, _ := sandbox(tb)
	return dir
}

func TestImpliedDirectoriesLookAsBelow(t *testing.T) {
	needRoot(t)
	base, mid, top := mkdir(t), mkdir(t), mkdir(t)
	if _, err := apply(t, base, []imagetest.File{
		{Name: "tmp/", Mode: 0o777 | fs.ModeSticky},
		{Name: "a/", Mode: 0o711, UID: 5, GID: 6},
		{Name: "a/b/", Mode: 0o700},
		{Name: "./", Mode: 0o750, UID: 1, GID: 2},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, mid, []imagetest.File{{Name: "other"}}, base); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, top, []imagetest.File{{Name: "tmp/x"}, {Name: "a/b/c/d"}}, mid, base); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"tmp": "dtrwxrwxrwx 0 0", "a": "drwx--x--x 5 6", "a/b": "drwx------ 0 0", "a/b/c": "drwxr-xr-x 0 0", ".": "drwxr-x--- 1 2",
	} {
		fi, err := os.Lstat(filepath.Join(top, path))
		if err != nil {
			t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%s %d %d", fi.Mode(), st.Uid, st.Gid); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

func TestHardLinkIntoALayerBelow(t *testing.T) {
	needRoot(t)
	base, mid, top := mkdir(t), mkdir(t), mkdir(t)
	if _, err := apply(t, base, []imagetest.File{
		{Name: "bin/", Mode: 0o711},
		{Name: "bin/tool", Body: []byte("tool"), Mode: 0o755 | fs.ModeSetuid, UID: 3, Xattrs: map[string]string{"user.a": "b"}},
		{Name: "hidden"},
		{Name: "sub/"},
		{Name: "sub/deep"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, mid, []imagetest.File{{Name: ".wh.hidden"}, {Name: "sub/"}, {Name: "sub/.wh..wh..opq"}}, base); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, top, []imagetest.File{{Name: "usr/"}, {Name: "usr/tool", Hard: "bin/tool", Mode: 0o755 | fs.ModeSetuid, UID: 3}}, mid, base); err != nil {
		t.Fatal(err)
	}
	a, err := os.Lstat(filepath.Join(top, "bin/tool"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Lstat(filepath.Join(top, "usr/tool"))
	if err != nil || !os.SameFile(a, b) || b.Mode() != 0o755|fs.ModeSetuid {
		t.Errorf("usr/tool: %v, %v", b, err)
	}
	if fi, err := os.Lstat(filepath.Join(top, "bin")); err != nil || fi.Mode().Perm() != 0o711 {
		t.Errorf("bin: %v, %v", fi, err)
	}
	for _, target := range []string{"hidden", "sub/deep", "sub"} {
		if _, err := apply(t, mkdir(t), []imagetest.File{{Name: "link", Hard: target}}, mid, base); !errdefs.IsInvalidArgument(err) {
			t.Errorf("link to %s: %v, want InvalidArgument", target, err)
		}
	}
}

func TestSpecialFiles(t *testing.T) {
	needRoot(t)
	dir := mkdir(t)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Name: "disk", Typeflag: tar.TypeBlock, Mode: 0o660, Devmajor: 7, Devminor: 300},
		{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o600},
	} {
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Apply(t.Context(), dir, &buf, layer.Options{}); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "disk"), &st); err != nil || unix.Major(st.Rdev) != 7 || unix.Minor(st.Rdev) != 300 {
		t.Errorf("disk %d:%d, %v", unix.Major(st.Rdev), unix.Minor(st.Rdev), err)
	}
	bad := new(bytes.Buffer)
	tw = tar.NewWriter(bad)
	if err := tw.WriteHeader(&tar.Header{Name: "odd", Typeflag: tar.TypeChar, Devmajor: 1 << 40, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Apply(t.Context(), mkdir(t), bad, layer.Options{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("device number out of range: %v", err)
	}
}

func TestAdministratorsXattrsAreNotTaken(t *testing.T) {
	needRoot(t)
	dir := mkdir(t)
	_, err := apply(t, dir, []imagetest.File{
		{Name: "d/", Xattrs: map[string]string{"trusted.overlay.opaque": "y", "trusted.overlay.redirect": "/etc"}},
		{Name: "./", Xattrs: map[string]string{"trusted.overlay.opaque": "y"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if opaque(t, filepath.Join(dir, "d")) || opaque(t, dir) {
		t.Error("the archive set overlayfs' own attributes")
	}
}

// endless is a gzip or plain stream without an end.
type endless struct{ head, rest []byte }

func (e *endless) Read(p []byte) (int, error) {
	if len(e.head) > 0 {
		n := copy(p, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	return copy(p, e.rest), nil
}

func TestEndlessLayersEnd(t *testing.T) {
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "big", Size: 1 << 50, Mode: 0o644, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	stream := func() io.Reader { return &endless{head: bytes.Clone(head.Bytes()), rest: make([]byte, 64<<10)} }
	_, err := layer.Apply(t.Context(), mkdir(t), stream(), layer.Options{MaxBytes: 1 << 20})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("limit: %v", err)
	}
	_, err = layer.Apply(t.Context(), mkdir(t), stream(), layer.Options{MinFree: 1 << 60})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("disk: %v", err)
	}
	// A few hundred bytes of tar that become an exabyte when unpacked.
	sparse := sparseTar(t, 1<<60)
	_, err = layer.Apply(t.Context(), mkdir(t), bytes.NewReader(sparse), layer.Options{MaxBytes: 1 << 20})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("sparse over the limit: %v", err)
	}
	_, err = layer.Apply(t.Context(), mkdir(t), bytes.NewReader(sparse), layer.Options{MinFree: 1})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("sparse over the disk: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = layer.Apply(ctx, mkdir(t), stream(), layer.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// sparseTar returns an archive with one file of size bytes, all of them a hole, in PAX form 1.0.
func sparseTar(t *testing.T, size int64) []byte {
	t.Helper()
	body := fmt.Appendf(nil, "1\n%d\n0\n", size)
	body = append(body, make([]byte, 512-len(body))...)
	var buf bytes.Buffer
	records := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=hole", fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		n := len(kv) + 3
		for len(fmt.Sprintf("%d %s\n", n, kv)) != n {
			n++
		}
		records += fmt.Sprintf("%d %s\n", n, kv)
	}
	raw := func(name string, typ byte, data []byte) {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000644\x000000000\x000000000\x00")
		copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00        ", len(data), 0))
		h[156] = typ
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		buf.Write(h)
		buf.Write(data)
		buf.Write(make([]byte, (512-len(data)%512)%512))
	}
	raw("PaxHeaders/hole", 'x', []byte(records))
	raw("GNUSparseFile/hole", '0', body)
	buf.Write(make([]byte, 1024))
	return buf.Bytes()
}

func TestDiffIDCoversAllBytes(t *testing.T) {
	plain := imagetest.Tar([]imagetest.File{{Name: "x", Body: []byte("x")}})
	padded := append(bytes.Clone(plain), make([]byte, 10_240)...)
	for _, how := range []string{imagetest.None, imagetest.Gzip, imagetest.Zstd} {
		for _, data := range [][]byte{plain, padded} {
			res, err := layer.Apply(t.Context(), mkdir(t), bytes.NewReader(imagetest.Compress(data, how)), layer.Options{})
			if err != nil || res.DiffID != digest.FromBytes(data) {
				t.Errorf("%s: %s, %v; want %s", how, res.DiffID, err, digest.FromBytes(data))
			}
		}
	}
}

// TestPaddedGzip reads a gzip stream with zero bytes behind it, and one of several members.
func TestPaddedGzip(t *testing.T) {
	plain := imagetest.Tar([]imagetest.File{{Name: "x", Body: []byte("x")}})
	padded := append(imagetest.Compress(plain, imagetest.Gzip), make([]byte, 100_000)...)
	members := slices.Concat(imagetest.Compress(plain[:700], imagetest.Gzip), make([]byte, 3), imagetest.Compress(plain[700:], imagetest.Gzip), []byte{0})
	for name, data := range map[string][]byte{"padded": padded, "members": members} {
		res, err := layer.Apply(t.Context(), mkdir(t), bytes.NewReader(data), layer.Options{})
		if err != nil || res.DiffID != digest.FromBytes(plain) {
			t.Errorf("%s: %s, %v; want %s", name, res.DiffID, err, digest.FromBytes(plain))
		}
	}
}

// TestOtherCompressionsAreNamed checks that the error says how a layer is compressed.
func TestOtherCompressionsAreNamed(t *testing.T) {
	for name, data := range map[string]string{"xz": "\xfd7zXZ\x00\x00\x04", "bzip2": "BZh91AY&SY"} {
		_, err := layer.Apply(t.Context(), mkdir(t), strings.NewReader(data), layer.Options{})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "compressed with "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBrokenStreams(t *testing.T) {
	good := imagetest.Compress(imagetest.Tar([]imagetest.File{{Name: "x", Body: make([]byte, 100_000)}}), imagetest.Gzip)
	for name, data := range map[string][]byte{
		"cut gzip": good[:len(good)-20], "gzip and rubbish": append(bytes.Clone(good), "rubbish"...), "text": []byte("this is no archive, and longer than one tar header would be " + strings.Repeat("x", 600)),
		"zstd head": {0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3},
	} {
		if _, err := layer.Apply(t.Context(), mkdir(t), bytes.NewReader(data), layer.Options{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add(imagetest.Tar([]imagetest.File{{Name: "a/"}, {Name: "a/.wh.b"}, {Name: "c", Link: "../.."}, {Name: "c/d", Body: []byte("x")}, {Name: "e", Hard: "a"}}))
	f.Add(imagetest.Compress(imagetest.Tar([]imagetest.File{{Name: "../x"}, {Name: ".wh..wh..opq"}}), imagetest.Gzip))
	f.Add(imagetest.Compress(imagetest.Tar([]imagetest.File{{Name: "/abs"}}), imagetest.Zstd))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, outside := sandbox(t)
		_, _ = layer.Apply(t.Context(), dir, bytes.NewReader(data), layer.Options{MaxBytes: 1 << 20})
		if read(t, outside) != "untouched" || len(listing(t, filepath.Dir(dir))) != 2 {
			t.Fatal("something left the root")
		}
	})
}

// FuzzPaths chooses names and link targets for a few entries.
func FuzzPaths(f *testing.F) {
	f.Add("a", "../..", "a/outside", "../outside", byte(0))
	f.Add("a/../..", "/", "a/.wh.outside", "a/outside", byte(1))
	f.Fuzz(func(t *testing.T, a, target, b, hard string, kind byte) {
		if strings.ContainsRune(a+target+b+hard, 0) || a == "" || b == "" || target == "" || hard == "" {
			t.Skip()
		}
		files := []imagetest.File{{Name: strings.TrimRight(a, "/") + "x", Link: target}, {Name: a, Link: target}, {Name: b, Body: []byte("evil")}, {Name: "h", Hard: hard}, {Name: "h", Body: []byte("evil")}}
		if kind%2 == 1 {
			files[2] = imagetest.File{Name: strings.TrimRight(b, "/") + "/"}
		}
		dir, outside := sandbox(t)
		_, _ = apply(t, dir, files)
		if read(t, outside) != "untouched" || len(listing(t, filepath.Dir(dir))) != 2 {
			t.Fatal("something left the root")
		}
	})
}

// emptyFiles is a tar of n empty files, generated while it is read.
func emptyFiles(n int) io.Reader {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		for i := range n {
			if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d", i), Mode: 0o644, Format: tar.FormatUSTAR}); err != nil {
				return // the reader has gone
			}
		}
		_ = w.CloseWithError(tw.Close())
	}()
	return r
}

// TestEntriesAreBounded: ten million empty files take few bytes of an archive, and as many inodes
// on disk.
func TestEntriesAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the entries belong to root")
	}
	dir := mkdir(t)
	_, err := layer.Apply(t.Context(), dir, emptyFiles(10_000_000), layer.Options{MaxEntries: 2000})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "more than 2000 entries (images.max_layer_entries)") {
		t.Errorf("layer: %v", err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) > 2000 {
		t.Errorf("%d files were made, %v", len(all), err)
	}
	if _, err := layer.Apply(t.Context(), mkdir(t), emptyFiles(2000), layer.Options{MaxEntries: 2000}); err != nil {
		t.Errorf("as many as may be: %v", err)
	}
	// One entry with a thousand implied directories, and another one in the same directories.
	deep := strings.Repeat("d/", 1000)
	files := []imagetest.File{{Name: deep + "a"}, {Name: deep + "b"}, {Name: "d/"}}
	if _, err := layer.Apply(t.Context(), mkdir(t), bytes.NewReader(imagetest.Tar(files)), layer.Options{MaxEntries: 1001}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("implied directories: %v", err)
	}
	if _, err := layer.Apply(t.Context(), mkdir(t), bytes.NewReader(imagetest.Tar(files)), layer.Options{MaxEntries: 1002}); err != nil {
		t.Errorf("implied directories that may be: %v", err)
	}
	budget := layer.NewBudget(3000)
	for _, want := range []bool{true, false} {
		_, err := layer.Apply(t.Context(), mkdir(t), emptyFiles(2000), layer.Options{Budget: budget})
		if (err == nil) != want {
			t.Errorf("image: %v", err)
		}
	}
	if _, err := layer.Apply(t.Context(), mkdir(t), emptyFiles(1), layer.Options{MinFreeInodes: 1 << 60}); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "images.min_free_inodes") {
		t.Errorf("disk: %v", err)
	}
}
