package wasm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/grant"
)

const enotdir = 54

// Flags of path_filestat_set_times.
const (
	setAccess   = 1
	setModified = 4
)

// TestPathsBelowAnOpenDirectory makes each call that takes a path with the descriptor of a directory that the program has opened: the
// preopen itself, by both of its names, and as the control one below it.
func TestPathsBelowAnOpenDirectory(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, opened := range []string{".", "./", "sub"} {
		dir, file := directory(t, map[string]string{"file": "text"})
		base := filepath.Join(dir, opened)
		if opened == "sub" {
			if err := os.Mkdir(base, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(base, "file"), []byte("text"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(outside, filepath.Join(base, "out")); err != nil {
			t.Fatal(err)
		}
		p := &program{}
		var want []uint32
		fd := p.open(4, opened, oDirectory, rightRead)
		want = append(want, success)
		one := func(call string, result uint32, path string, more ...any) {
			at, size := p.text(path)
			p.call(call, append([]any{fd, at, size}, more...)...)
			want = append(want, result)
		}
		two := func(call string, result uint32, from, to string) {
			at, size := p.text(from)
			toAt, toSize := p.text(to)
			switch call {
			case "path_symlink":
				p.call(call, at, size, fd, toAt, toSize)
			case "path_link":
				p.call(call, fd, 0, at, size, fd, toAt, toSize)
			default:
				p.call(call, fd, at, size, fd, toAt, toSize)
			}
			want = append(want, result)
		}
		p.copyOut(p.open(fd, "file", 0, rightRead))
		want = append(want, success, success, success)
		one("path_create_directory", success, "dir")
		one("path_create_directory", success, "dir/slash/")
		p.open(fd, "dir/new", oCreate, rightWrite)
		want = append(want, success)
		at, size := p.text("dir/new")
		p.call("path_filestat_get", fd, 0, at, size, atBuffers)
		want = append(want, success)
		setTimes := func(result uint32, path string) {
			at, size := p.text(path)
			p.call("path_filestat_set_times", fd, followLinks, at, size, int64(time.Second), int64(2*time.Second), setAccess|setModified)
			want = append(want, result)
		}
		setTimes(success, "file")
		setTimes(enoent, "none")
		setTimes(eperm, "out/secret")
		two("path_rename", success, "dir/new", "moved")
		two("path_link", success, "moved", "dir/hard")
		two("path_symlink", success, "moved", "soft")
		one("path_readlink", success, "soft", atBuffers, bufferLen, atBuffers+bufferLen)
		// A name before a slash must be a directory, and the slash follows no link.
		one("path_unlink_file", enotdir, "moved/")
		two("path_symlink", enoent, "moved", "soft2/")
		two("path_link", enotdir, "moved/", "hard2")
		two("path_link", enotdir, "out/", "hard2")
		two("path_link", enoent, "moved", "hard2/")
		two("path_rename", enotdir, "moved/", "moved2")
		two("path_rename", enotdir, "out/", "moved2")
		one("path_unlink_file", enotdir, "out/")
		one("path_remove_directory", enotdir, "out/")
		one("path_readlink", success, "out/", atBuffers, bufferLen, atBuffers+bufferLen)
		// Nothing is reached that is not below it.
		for _, path := range []string{"out/secret", "/etc/passwd", "../secret", "dir/../../secret"} {
			p.open(fd, path, 0, rightRead)
			want = append(want, eperm)
		}
		one("path_unlink_file", success, "soft")
		one("path_unlink_file", success, "moved")
		one("path_unlink_file", success, "dir/hard")
		one("path_remove_directory", success, "dir/slash/")
		one("path_remove_directory", success, "dir")
		w := newWorker(t, p.finish(), given{grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write}, file})
		status, out := w.end(w.start())
		t.Logf("%d calls of WASI with the directory %s", len(want), opened)
		w.compare(status, out, "text", want...)
		if fi, err := os.Stat(filepath.Join(base, "file")); err != nil || !fi.ModTime().Equal(time.Unix(2, 0)) {
			t.Errorf("%s: the file was modified at %v, %v", opened, fi, err)
		}
		if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "secret" {
			t.Errorf("%s: outside is %q, %v", opened, text, err)
		}
	}
}

// TestGoUsesOpenDirectories runs a program of Go's that removes trees and opens roots, which name files by open directories.
func TestGoUsesOpenDirectories(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	path := filepath.Join(t.TempDir(), "paths.wasm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/paths")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, file := directory(t, nil)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	null := openFile(t, os.DevNull, os.O_RDONLY)
	w := newWorker(t, module, given{grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write}, file}, given{grant.Grant{Kind: grant.Random}, null})
	w.job.Args = []string{"paths.wasm", "/data/sub", "/data"}
	if status, out := w.end(w.start()); status != 0 || string(out) != "done\n" {
		t.Errorf("it ended with %d: %s, %s", status, out, w.messages.String())
	}
}
