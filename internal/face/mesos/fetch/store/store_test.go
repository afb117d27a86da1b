package store

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/weaken"
)

// tryArg makes the test binary try the acts of a broken decoder; its second argument says whether
// it is confined first.
const tryArg = "try"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == tryArg {
		os.Exit(try(os.Args[2] == "confined"))
	}
	if len(os.Args) > 1 && os.Args[1] == Arg {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// try prints each act's success.
func try(confined bool) int {
	box := "/proc/self/fd/" + strconv.Itoa(SandboxFD)
	beside := os.Getenv("BESIDE")
	if confined {
		if err := confineSelf(box); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 3
		}
	}
	read := func(name string) func() error {
		return func() error { _, err := os.ReadFile(name); return err }
	}
	result := map[string]bool{}
	for name, do := range map[string]func() error{
		"in: write":      func() error { return os.WriteFile(box+"/a", []byte("x"), 0o600) },
		"in: rename":     func() error { return errors.Join(os.MkdirAll(box+"/d", 0o700), os.Rename(box+"/b", box+"/d/b")) },
		"out: write":     func() error { return os.WriteFile(beside, []byte("x"), 0o600) },
		"out: read":      read("/etc/passwd"),
		"out: list":      func() error { _, err := os.ReadDir("/"); return err },
		"out: link":      func() error { return os.Link(beside+".mine", box+"/linked") },
		"out: proc":      read("/proc/1/status"),
		"program":        func() error { return exec.CommandContext(context.Background(), "/bin/true").Run() },
		"unix socket":    socket(unix.AF_UNIX),
		"network socket": socket(unix.AF_INET),
		"device":         func() error { return unix.Mknod(box+"/null", unix.S_IFCHR, 1<<8|3) },
		"chown":          func() error { return os.Lchown(box+"/c", 12345, 12345) },
		"kill":           func() error { return unix.Kill(os.Getppid(), 0) },
	} {
		result[name] = do() == nil
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETUID, 12345, 0, 0)
	result["another user"] = errno == 0
	if json.NewEncoder(os.Stdout).Encode(result) != nil {
		return 3
	}
	return 0
}

func socket(family int) func() error {
	return func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

// TestWhatTheProcessCannotDo: confined, it can do its work in its sandbox, and nothing else;
// unconfined it could do all of it.
func TestWhatTheProcessCannotDo(t *testing.T) {
	if os.Getuid() != 0 || confine.LandlockABI() < 2 {
		t.Skip("needs root and Landlock")
	}
	for _, how := range []string{"confined", "unconfined"} {
		base := t.TempDir()
		for _, name := range []string{"beside", "beside.mine"} {
			if err := os.WriteFile(filepath.Join(base, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		box := filepath.Join(base, "box")
		if err := errors.Join(os.Mkdir(box, 0o755), os.WriteFile(box+"/b", nil, 0o600), os.WriteFile(box+"/c", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(box)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dir.Close() }()
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", tryArg, how)
		cmd.Env = append(os.Environ(), "BESIDE="+filepath.Join(base, "beside"))
		cmd.ExtraFiles = []*os.File{dir, dir}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		var result map[string]bool
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		for name, done := range result {
			if want := how == "unconfined" || strings.HasPrefix(name, "in: "); done != want {
				t.Errorf("%s, %s: %v", how, name, done)
			}
		}
	}
}

// run has the process do a job, with from as its source, in a sandbox of its user.
func run(t *testing.T, box string, job Job, from *os.File) error {
	t.Helper()
	dir, err := os.Open(box)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	arg, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", Arg, string(arg))
	cmd.ExtraFiles, cmd.Env = []*os.File{from, dir}, append([]string{"HOME=/"}, weaken.Environ()...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	out, err := cmd.Output()
	if err != nil {
		exit := (*exec.ExitError)(nil)
		errors.As(err, &exit)
		return fmt.Errorf("%w: %.200s", err, exit.Stderr)
	}
	var r Result
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

type entry struct {
	tar.Header
	text string
}

func tarball(t testing.TB, list ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		if e.Typeflag == tar.TypeReg && e.Size == 0 {
			e.Size = int64(len(e.text))
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func reg(name, text string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o6755, Uid: 0, Gid: 0}, text}
}

func link(kind byte, name, to string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: to, Mode: 0o777}, ""}
}

func packed(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := xz.NewWriter(&b)
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

// hungry is a file of xz that wants a dictionary of four gigabytes.
func hungry(t testing.TB, file []byte) []byte {
	t.Helper()
	const head = 12 // of the stream; the first block follows
	size := (int(file[head]) + 1) * 4
	block := file[head : head+size]
	i := bytes.Index(block, []byte{0x21, 0x01}) // LZMA2; its byte is the dictionary size
	if i < 0 {
		t.Fatal("no block of LZMA2")
	}
	block[i+2] = 40
	binary.LittleEndian.PutUint32(block[size-4:], crc32.ChecksumIEEE(block[:size-4]))
	return file
}

// naively unpacks a tar file as programs do that take names as they are.
func naively(box string, raw []byte) {
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		h, err := r.Next()
		if err != nil {
			return
		}
		name := filepath.Join(box, h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			_ = os.Symlink(h.Linkname, name)
		case tar.TypeLink:
			_ = os.Link(filepath.Join(box, h.Linkname), name)
		case tar.TypeReg:
			text, _ := io.ReadAll(r)
			_ = os.WriteFile(name, text, 0o644)
		}
	}
}

func zipped(t testing.TB, name string, mode fs.FileMode, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	h := &zip.FileHeader{Name: name, Method: zip.Deflate}
	h.SetMode(mode)
	f, err := w.CreateHeader(h)
	if err == nil {
		_, err = io.WriteString(f, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(raw)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// malicious are archives, by their names, that reach out of a sandbox.
func malicious(t testing.TB, outside string) map[string][]byte {
	t.Helper()
	up := strings.Repeat("../", 20)
	bomb := make([]byte, 4<<20)
	sparse := tarball(t, reg("s", "x"))
	device := entry{tar.Header{Typeflag: tar.TypeBlock, Name: "d", Devmajor: 8, Mode: 0o666}, ""}
	return map[string][]byte{
		"up.tar":          tarball(t, reg(up+outside+"/x", "x")),
		"absolute.tar":    tarball(t, reg(outside+"/x", "x")),
		"link.tar":        tarball(t, link(tar.TypeSymlink, "l", outside), reg("l/x", "x")),
		"links.tar":       tarball(t, link(tar.TypeSymlink, "a", ".."), link(tar.TypeSymlink, "b", "a/.."), reg("b/x", "x")),
		"over.tar":        tarball(t, link(tar.TypeSymlink, "x", outside+"/secret"), reg("x", "x")),
		"hard.tar":        tarball(t, link(tar.TypeLink, "h", up+outside+"/secret"), reg("h", "x")),
		"hardlink.tar":    tarball(t, link(tar.TypeSymlink, "l", outside+"/secret"), link(tar.TypeLink, "h", "l"), reg("h", "x")),
		"hardinlink.tar":  tarball(t, link(tar.TypeSymlink, "l", outside), link(tar.TypeLink, "h", "l/secret")),
		"device.tar":      tarball(t, device),
		"fifo.tar":        tarball(t, entry{tar.Header{Typeflag: tar.TypeFifo, Name: "stdin", Mode: 0o666}, ""}),
		"setuid.tar":      tarball(t, reg("suid", "#!/bin/sh\n")),
		"output.tar":      tarball(t, reg("stdout", "x")),
		"nested.tar":      tarball(t, link(tar.TypeSymlink, "containers", outside)),
		"bomb.tar.gz":     gzipped(t, tarball(t, reg("b", string(bomb)))),
		"bomb.gz":         gzipped(t, bomb),
		"bomb.tar.xz":     packed(t, tarball(t, reg("b", string(bomb)))),
		"nul.tar":         bytes.Replace(tarball(t, reg("n", "x")), []byte("n\x00"), []byte("n\xff"), 1),
		"sparse.tar":      bytes.Replace(sparse, []byte("0\x00ustar"), []byte("S\x00ustar"), 1),
		"up.zip":          zipped(t, up+outside+"/x", 0o644, "x"),
		"absolute.zip":    zipped(t, outside+"/x", 0o644, "x"),
		"backslash.zip":   zipped(t, `..\..\x`, 0o644, "x"),
		"link.zip":        zipped(t, "l", fs.ModeSymlink|0o777, outside),
		"setuid.zip":      zipped(t, "suid", fs.ModeSetuid|0o755, "#!/bin/sh\n"),
		"bomb.zip":        zipped(t, "b", 0o644, string(bomb)),
		"dictionary.txz":  hungry(t, packed(t, tarball(t, reg("b", "x")))),
		"notanarchive.gz": []byte("x"),
	}
}

// TestMaliciousArchives: no archive changes anything beside the sandbox, or makes a file of another
// user, or one with the rights of its owner.
func TestMaliciousArchives(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	base := t.TempDir()
	for dir := base; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const user = 12345
	outside := filepath.Join(base, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o777), os.Chmod(outside, 0o777), os.WriteFile(outside+"/secret", []byte("s"), 0o666), os.Chmod(outside+"/secret", 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, raw := range malicious(t, outside) {
		file := filepath.Join(base, name)
		box := filepath.Join(base, "box-"+name)
		if err := errors.Join(os.WriteFile(file, raw, 0o600), os.Mkdir(box, 0o755), os.Mkdir(box+"/containers", 0o755), os.Chown(box, user, user)); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", name, run(t, box, Job{UID: user, GID: user, Name: name, Extract: true, Limit: 1 << 20}, f))
		_ = f.Close()
		var total int64
		err = filepath.WalkDir(box, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == box || path == box+"/containers" {
				return err
			}
			st, err := d.Info()
			if err != nil {
				return err
			}
			total += st.Size()
			if owner := st.Sys().(*syscall.Stat_t).Uid; owner != user || st.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice) != 0 {
				t.Errorf("%s: %s is %d's, %v", name, path, owner, st.Mode())
			}
			return nil
		})
		if err != nil || total > 2<<20 {
			t.Errorf("%s: %d bytes, %v", name, total, err)
		}
		if st, err := os.Lstat(box + "/containers"); err != nil || !st.IsDir() {
			t.Errorf("%s: the directory of nested sandboxes: %v, %v", name, st, err)
		}
		left, err := os.ReadDir(outside)
		secret, rerr := os.ReadFile(outside + "/secret")
		if err != nil || rerr != nil || len(left) != 1 || string(secret) != "s" {
			t.Fatalf("%s reached %v, %q, %v, %v", name, left, secret, err, rerr)
		}
	}
}

// TestTheArchivesAreMalicious is the control: unpacked naively, they reach out.
func TestTheArchivesAreMalicious(t *testing.T) {
	for _, name := range []string{"up.tar", "link.tar", "over.tar", "hard.tar"} {
		base := t.TempDir()
		box, outside := filepath.Join(base, "box"), filepath.Join(base, "outside")
		if err := errors.Join(os.Mkdir(box, 0o755), os.Mkdir(outside, 0o755), os.WriteFile(outside+"/secret", []byte("s"), 0o600)); err != nil {
			t.Fatal(err)
		}
		naively(box, malicious(t, outside)[name])
		left, err := os.ReadDir(outside)
		secret, rerr := os.ReadFile(outside + "/secret")
		if err != nil || rerr != nil || len(left) == 1 && string(secret) == "s" {
			t.Errorf("%s does no harm: %v, %v", name, err, rerr)
		}
	}
}

// TestFilesAreOpenedAsTheUser: below the directory, and with the user's rights.
func TestFilesAreOpenedAsTheUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	base := t.TempDir()
	const user, group = 12345, 23456
	dir, box := filepath.Join(base, "dir"), filepath.Join(base, "box")
	for name, mode := range map[string]fs.FileMode{"dir/all": 0o644, "dir/roots": 0o600, "dir/groups": 0o640, "outside": 0o644} {
		name = filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("x"), 0o600), os.Chmod(name, mode), os.Chown(name, 0, group)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(box, 0o755), os.Chown(box, user, user), os.Symlink("../outside", dir+"/up"), os.Symlink(base+"/outside", dir+"/absolute"), os.Symlink("all", dir+"/link"),
		os.Symlink("/proc/self/fd/3", dir+"/magic"), unix.Mkfifo(dir+"/fifo", 0o666), os.Symlink(base, dir+"/parent")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"all": "", "link": "", "groups": "", "roots": "permission denied", "../outside": "invalid cross-device link", "up": "invalid cross-device link", "absolute": "invalid cross-device link",
		"parent/outside": "invalid cross-device link", "magic": "invalid cross-device link", "fifo": "is not a regular file", ".": "is not a regular file", "none": "no such file",
	} {
		from, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = run(t, box, Job{UID: user, GID: user, Groups: []uint32{group}, File: name, Name: "f", Limit: 10}, from)
		_ = from.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	st, err := os.Stat(box + "/f")
	if err != nil || st.Mode().Perm() != 0o600 || st.Sys().(*syscall.Stat_t).Uid != user {
		t.Errorf("%v, %v", st, err)
	}
	// A link that changes all the time never leads out of the directory, which it would if the path
	// were checked first and opened then.
	stop, turned := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(turned)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			to := []string{"all", "../outside"}[i%2]
			_ = os.Symlink(to, dir+"/.new")
			_ = os.Rename(dir+"/.new", dir+"/racing")
		}
	}()
	if err := os.WriteFile(base+"/outside", []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	won, naive := 0, 0
	for range 40 {
		from, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if run(t, box, Job{UID: user, GID: user, File: "racing", Name: "f", Limit: 10}, from) == nil {
			won++
			if got, err := os.ReadFile(box + "/f"); err != nil || string(got) != "x" {
				t.Errorf("fetched %q, %v", got, err)
			}
		}
		_ = from.Close()
	}
	// The control: a check before the opening is led out.
	for range 20000 {
		if led, err := filepath.EvalSymlinks(dir + "/racing"); err != nil || led != dir+"/all" {
			continue
		}
		if got, err := os.ReadFile(dir + "/racing"); err == nil && string(got) == "secret" {
			naive++
		}
	}
	close(stop)
	<-turned
	t.Logf("%d of 40 were fetched; the naive way was led out %d times", won, naive)
	if naive == 0 {
		t.Error("the race was never lost by who looks first: it tests nothing")
	}
}

// FuzzUnpack: no archive changes anything beside the sandbox, though only the code confines it
// here.
func FuzzUnpack(f *testing.F) {
	tree := tarball(f, entry{tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, ""}, reg("d/f", "in"), link(tar.TypeSymlink, "d/l", ".."), link(tar.TypeLink, "h", "d/f"))
	f.Add(".tar", tree)
	f.Add(".tar.gz", gzipped(f, tree))
	f.Add(".tar.xz", packed(f, tree))
	f.Add(".zip", zipped(f, "a/b", 0o644, "z"))
	f.Add(".gz", gzipped(f, []byte("x")))
	f.Add(".tar", tarball(f, link(tar.TypeSymlink, "d", ".."), reg("d/x", "x")))
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		if strings.ContainsAny(kind, "/\x00\\'") || len(kind) > 20 || len(raw) > 1<<13 {
			return
		}
		dir := filepath.Join(t.TempDir(), "box")
		if err := os.MkdirAll(filepath.Join(dir, "containers"), 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		to := &unpacker{Root: root, left: 1 << 20}
		n, err := to.store(t.Context(), bytes.NewReader(raw), Job{Name: "f" + kind, Extract: true})
		if n < 0 || n > 1<<20 {
			t.Errorf("%d bytes", n)
		}
		if beside, rerr := os.ReadDir(filepath.Dir(dir)); rerr != nil || len(beside) != 1 {
			t.Fatalf("beside the sandbox: %v, %v", beside, rerr)
		}
		if st, lerr := os.Lstat(filepath.Join(dir, "containers")); err == nil && (lerr != nil || !st.IsDir()) {
			t.Fatalf("the directory of nested sandboxes: %v, %v", st, lerr)
		}
	})
}
