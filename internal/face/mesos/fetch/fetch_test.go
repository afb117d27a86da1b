package fetch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"
	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

func uri(value string) *mesosv1.CommandInfo_URI { return &mesosv1.CommandInfo_URI{Value: &value} }

func all(ctx context.Context, dir string, uris []*mesosv1.CommandInfo_URI) error {
	return Fetcher{Limit: 1 << 20, Dirs: []string{"/"}}.Fetch(ctx, dir, us(), uris)
}

// us is the tests' user.
func us() User { return User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())} }

// TestMain lets the test binary be the process that stores.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == store.Arg {
		os.Exit(store.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// box makes a sandbox as the face does.
func box(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "box")
	if err := os.MkdirAll(filepath.Join(dir, sandbox.Nested), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// has compares the tree in dir: "name" is a directory's, "name=text" a file's, "name*=text" an
// executable one's, "name>there" a link's.
func has(t *testing.T, dir, want string) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			got = append(got, rel+">"+to)
			return err
		case d.IsDir():
			got = append(got, rel)
			return nil
		}
		if info.Mode().Perm()&0o100 != 0 {
			rel += "*"
		}
		text, err := os.ReadFile(path)
		if len(text) > 20 {
			text = text[:0]
		}
		got = append(got, rel+"="+string(text))
		return err
	})
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("%v: %q, want %q", err, strings.Join(got, " "), want)
	}
}

type entry struct {
	kind       byte
	name, text string // text is where a link leads
}

func tarball(t testing.TB, list ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: 0o4755}
		if e.kind == tar.TypeReg {
			h.Size = int64(len(e.text))
		} else {
			h.Linkname = e.text
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, n := range names {
		f, err := w.Create(n)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(n, "/") {
			continue
		}
		if _, err := f.Write([]byte("z")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func xzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := xz.WriterConfig{DictCap: lzma.MinDictCap}.NewWriter(&b)
	if err == nil {
		_, err = w.Write(raw)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatIsFetched(t *testing.T) {
	src := t.TempDir()
	tree := tarball(t, entry{tar.TypeDir, "d/", ""}, entry{tar.TypeReg, "d/f", "in"}, entry{tar.TypeSymlink, "d/l", "f"}, entry{tar.TypeLink, "h", "d/f"})
	for name, raw := range map[string][]byte{"plain": []byte("p"), "a.tar": tree, "a.tar.gz": gzipped(t, tree), "a.tar.xz": xzipped(t, tree), "a.txz": xzipped(t, tree), "a.zip": zipped(t, "x/", "x/y"), "one.gz": gzipped(t, []byte("o"))} {
		if err := os.WriteFile(filepath.Join(src, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	web := httptest.NewServer(http.FileServerFS(os.DirFS(src)))
	defer web.Close()
	yes, no := proto.Bool(true), proto.Bool(false)
	for name, c := range map[string]struct {
		u    *mesosv1.CommandInfo_URI
		want string
	}{
		"a path":            {uri(src + "/plain"), "containers plain=p"},
		"a file URI":        {uri("file://" + src + "/plain"), "containers plain=p"},
		"of this host":      {uri(" file://localhost" + src + "/plain"), "containers plain=p"},
		"by HTTP":           {uri(web.URL + "/plain"), "containers plain=p"},
		"under its query":   {uri(web.URL + "/plain?v=1"), "containers plain?v=1=p"},
		"executable":        {&mesosv1.CommandInfo_URI{Value: proto.String(src + "/plain"), Executable: yes}, "containers plain*=p"},
		"by another name":   {&mesosv1.CommandInfo_URI{Value: proto.String(src + "/plain"), OutputFile: proto.String("sub/./dir/n")}, "containers sub sub/dir sub/dir/n=p"},
		"a tar file":        {uri(src + "/a.tar"), "a.tar= containers d d/f*=in d/l>f h*=in"},
		"a packed tar file": {uri(web.URL + "/a.tar.gz"), "a.tar.gz= containers d d/f*=in d/l>f h*=in"},
		"packed by xz":      {uri(web.URL + "/a.tar.xz"), "a.tar.xz= containers d d/f*=in d/l>f h*=in"},
		"the same, shorter": {uri(src + "/a.txz"), "a.txz= containers d d/f*=in d/l>f h*=in"},
		"a zip file":        {uri(src + "/a.zip"), "a.zip= containers x x/y=z"},
		"a packed file":     {uri(src + "/one.gz"), "containers one=o one.gz="},
		"not to be opened":  {&mesosv1.CommandInfo_URI{Value: proto.String(src + "/a.zip"), Extract: no}, "a.zip= containers"},
		"a program instead": {&mesosv1.CommandInfo_URI{Value: proto.String(src + "/a.zip"), Executable: yes}, "a.zip*= containers"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := box(t)
			if err := all(t.Context(), dir, []*mesosv1.CommandInfo_URI{c.u}); err != nil {
				t.Error(err)
			}
			has(t, dir, c.want)
		})
	}
}

func TestWhatIsNotFetched(t *testing.T) {
	src := t.TempDir()
	for name, raw := range map[string][]byte{
		"out.tar":    tarball(t, entry{tar.TypeReg, "../x", "x"}),
		"link.tar":   tarball(t, entry{tar.TypeSymlink, "l", src}, entry{tar.TypeReg, "l/x", "x"}),
		"hard.tar":   tarball(t, entry{tar.TypeLink, "h", "../secret"}),
		"dev.tar":    tarball(t, entry{tar.TypeChar, "d", ""}),
		"over.tar":   tarball(t, entry{tar.TypeSymlink, "containers", "/etc"}),
		"round.tar":  tarball(t, entry{tar.TypeSymlink, "d", "."}, entry{tar.TypeSymlink, "d/containers", "/etc"}),
		"stdout.tar": tarball(t, entry{tar.TypeSymlink, "d", "."}, entry{tar.TypeSymlink, "d/stdout", "/etc/motd"}),
		"half.tar":   tarball(t, entry{tar.TypeReg, "f", "x"})[:100],
		"out.zip":    zipped(t, "../x"),
		"no.zip":     []byte("PK"),
		"no.gz":      []byte("x"),
		"a.tar.xz":   []byte("x"),
		"half.txz":   xzipped(t, tarball(t, entry{tar.TypeReg, "f", "x"}))[:40],
		"bomb.txz":   xzipped(t, tarball(t, entry{tar.TypeReg, "f", string(make([]byte, 1<<20))})),
		"secret":     []byte("s"),
		"bomb.gz":    gzipped(t, make([]byte, 1<<20)),
	} {
		if err := os.WriteFile(filepath.Join(src, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	as := func(name string) *mesosv1.CommandInfo_URI {
		return &mesosv1.CommandInfo_URI{Value: proto.String(src + "/secret"), OutputFile: &name}
	}
	for _, c := range []struct {
		u    *mesosv1.CommandInfo_URI
		want string
	}{
		{uri("This file doesn't exist"), "Illegal characters in URI"},
		{uri("no such file"), "A relative path was passed"},
		{uri(""), "missing path"},
		{uri("/"), "missing path"},
		{uri("http://host"), "missing path"},
		{uri("http://host/"), "missing path"},
		{uri(src + "/.."), "missing path"},
		{uri(src + "/none"), "no such file or directory"},
		{uri(src), "is not a regular file"},
		{uri("file://relative/f"), "A relative path was passed"},
		{uri("hdfs://host/f"), "URIs of scheme \"hdfs\" are not supported"},
		{uri("://host/f"), "URIs of scheme \"\" are not supported"},
		{uri(web.URL + "/f"), "received HTTP return code 404"},
		{uri("http://127.0.0.1:1/f"), "refused"},
		{uri("http://%zz/f"), "invalid URL escape"},
		{as(""), "URI output file path is empty"},
		{as("../x"), "must be within the sandbox directory"},
		{as("/x"), "must be within the sandbox directory"},
		{as("."), "must be within the sandbox directory"},
		{as("containers"), "'containers' is a directory"},
		{uri(src + "/out.tar"), "'../x' leads out of the sandbox"},
		{uri(src + "/link.tar"), "path escapes from parent"},
		{uri(src + "/hard.tar"), "'../secret' leads out of the sandbox"},
		{uri(src + "/dev.tar"), "'d' is neither file, directory nor link"},
		{uri(src + "/over.tar"), "'containers' is a directory"},
		{uri(src + "/round.tar"), "'d/containers' is a directory"},
		{uri(src + "/stdout.tar"), "'stdout' of the sandbox was replaced"},
		{uri(src + "/half.tar"), "unexpected EOF"},
		{uri(src + "/out.zip"), "'../x' leads out of the sandbox"},
		{uri(src + "/no.zip"), "zip: not a valid zip file"},
		{uri(src + "/no.gz"), "EOF"},
		{uri(src + "/a.tar.xz"), "unexpected EOF"},
		{uri(src + "/half.txz"), "unexpected EOF"},
		{uri(src + "/bomb.txz"), "more than face.mesos.max_fetch_bytes"},
		{uri(src + "/bomb.gz"), "more than face.mesos.max_fetch_bytes"},
		{uri("/dev/zero"), "is not a regular file"},
	} {
		if err := all(t.Context(), box(t), []*mesosv1.CommandInfo_URI{c.u}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "'"+c.u.GetValue()+"': ") && !strings.Contains(c.want, "was replaced") {
			t.Errorf("%s: %v, want %s", c.u.GetValue(), err, c.want)
		}
	}
}

// TestAFetchEndsWithItsCall: a fetch ends with its client, though its server stalls.
func TestAFetchEndsWithItsCall(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("some"))
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-end
	}))
	defer web.Close()
	defer close(end)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	go func() {
		<-begun
		cancel(gone)
	}()
	if err := all(ctx, box(t), []*mesosv1.CommandInfo_URI{uri(web.URL + "/f")}); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}
