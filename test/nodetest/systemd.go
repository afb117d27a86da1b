package nodetest

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// systemdPrograms are the programs of systemd that a small root has. The libraries that they link are added.
var systemdPrograms = []string{"/usr/bin/systemctl", "/usr/bin/journalctl", "/usr/bin/systemd-tmpfiles"} //nolint:gochecknoglobals // never changed

const systemdDir = "/usr/lib/systemd"

// systemdMasked are units that need programs or users outside of the small root.
var systemdMasked = []string{ //nolint:gochecknoglobals // never changed
	"dbus.service", "dbus.socket", "systemd-logind.service", "systemd-sysusers.service", "console-getty.service", "systemd-ask-password-console.path",
	"systemd-ask-password-wall.path",
}

// SystemdRoot writes an archive of a root file system with this machine's systemd, a busybox and the units, and returns its
// name. multi-user.target wants the units.
func SystemdRoot(t *testing.T, units map[string]string) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox-static")
	}
	if _, err := os.Stat(systemdDir + "/systemd"); err != nil {
		t.Skipf("no systemd: %v", err)
	}
	name := filepath.Join(t.TempDir(), "root.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	r := root{t: t, to: tar.NewWriter(f)}
	for _, d := range []string{"usr", "usr/bin", "usr/sbin", "etc", "etc/systemd/system/multi-user.target.wants", "run", "tmp", "var/log", "var/lib", "root"} {
		r.dir(d)
	}
	for from, to := range map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/sbin/init": "../lib/systemd/systemd", "var/run": "/run"} {
		r.link(from, to)
	}
	r.file(busybox, "usr/bin/busybox")
	for _, applet := range []string{"sh", "cat", "sleep", "ls", "mkdir", "rmdir", "echo", "dd", "printf", "stat", "env", "find", "seq", "wc", "grep", "touch", "poweroff"} {
		r.link("usr/bin/"+applet, "busybox")
	}
	for _, p := range systemdPrograms {
		r.file(p, p[1:])
	}
	r.tree(systemdDir)
	r.libraries(append(slices.Clone(systemdPrograms), systemdDir+"/systemd", systemdDir+"/systemd-journald"))
	r.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	r.text("etc/group", "root:x:0:\n")
	r.text("etc/machine-id", "")
	r.text("etc/os-release", "ID=test\nPRETTY_NAME=Test\n")
	r.link("etc/systemd/system/default.target", systemdDir+"/system/multi-user.target")
	for _, u := range systemdMasked {
		r.link("etc/systemd/system/"+u, "/dev/null")
	}
	for u, text := range units {
		r.text("etc/systemd/system/"+u, text)
		r.link("etc/systemd/system/multi-user.target.wants/"+u, "../"+u)
	}
	if err := errors.Join(r.to.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// root writes the archive of a root file system.
type root struct {
	t  *testing.T
	to *tar.Writer
}

func (r root) put(h *tar.Header, content io.Reader) {
	r.t.Helper()
	err := r.to.WriteHeader(h)
	if err == nil && content != nil {
		_, err = io.Copy(r.to, content)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r root) dir(name string) {
	r.put(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
}

func (r root) link(name, to string) {
	r.put(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, nil)
}

func (r root) text(name, content string) {
	r.put(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, strings.NewReader(content))
}

// file adds a file of this machine.
func (r root) file(from, name string) {
	r.t.Helper()
	f, err := os.Open(from)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		r.t.Fatal(err)
	}
	r.put(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(st.Mode().Perm()), Size: st.Size()}, f)
}

// tree adds a directory of this machine.
func (r root) tree(dir string) {
	r.t.Helper()
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			r.link(p[1:], to)
			return err
		case e.IsDir():
			r.dir(p[1:])
		default:
			r.file(p, p[1:])
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

var library = regexp.MustCompile(`(/\S+\.so\S*) \(0x`)

// libraries adds the libraries that programs of this machine link.
func (r root) libraries(programs []string) {
	r.t.Helper()
	seen := map[string]bool{}
	for _, p := range programs {
		out, err := exec.CommandContext(r.t.Context(), "ldd", p).Output()
		if err != nil {
			r.t.Fatalf("ldd %s: %v", p, err)
		}
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			name := strings.TrimPrefix(m[1], "/usr")
			if !seen[name] {
				seen[name] = true
				r.file(m[1], "usr"+name)
			}
		}
	}
}
