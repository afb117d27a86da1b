package packaging

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	engine     = "longshore"
	kubernetes = "longshore-kubernetes"
	docker     = "longshore-docker"
	hub        = "longshore-hub"
	nomad      = "longshore-nomad"
	oci        = "longshore-oci"
	guest      = "longshore-guest"
)

// completions are the files where each shell looks for completions.
var completions = []string{
	"/usr/share/bash-completion/completions/longshore", "/usr/share/zsh/vendor-completions/_longshore", "/usr/share/fish/vendor_completions.d/longshore.fish",
}

// build makes these packages, or all, and returns their files by name.
func build(t *testing.T, version, compression string, names ...string) map[string]string {
	t.Helper()
	if len(names) == 0 {
		names = []string{engine, kubernetes, docker, hub, nomad, oci, guest}
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "../../hack/deb.sh")
	cmd.Env = append(os.Environ(), "VERSION="+version, "BIN="+nodetest.Bin(t), "OUT="+out, "COMPRESSION="+compression, "PACKAGES="+strings.Join(names, " "))
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("deb.sh: %v: %s", err, b)
	}
	files := map[string]string{}
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(out, name+"_"+version+"_*.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		files[name] = found[0]
	}
	return files
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// TestInstall: make install has, below DESTDIR, the files of the packages longshore and longshore-oci but /etc and documents.
func TestInstall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, unpacked := t.TempDir(), t.TempDir()
		run(t, "make", "-C", "../..", "-o", "build", "install", "BIN="+nodetest.Bin(t), "DESTDIR="+dir)
		debs := build(t, "1.2.3", "none", engine, oci)
		run(t, "dpkg-deb", "-x", debs[engine], unpacked)
		run(t, "dpkg-deb", "-x", debs[oci], unpacked)
		installed, packaged := files(t, dir), files(t, unpacked)
		packaged = slices.DeleteFunc(packaged, func(path string) bool {
			return strings.HasPrefix(path, "/etc/") || strings.HasPrefix(path, "/usr/share/doc/") || strings.HasPrefix(path, "/usr/share/lintian/")
		})
		if !slices.Equal(installed, packaged) {
			t.Errorf("make install has %v\nthe package has %v", installed, packaged)
		}
		for _, path := range completions {
			if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !bytes.Contains(b, []byte(" __complete")) {
				t.Errorf("%s: %v: %.100s", path, err, b)
			}
		}
	})
}

// files returns the paths of the files below dir, from there, in order.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPackagesAreWellFormed: the packages' files have the right owners and rights, the
// administrator's are marked, and the scripts are scripts.
func TestPackagesAreWellFormed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for name, file := range build(t, "1.2.3", "none") {
			dir := t.TempDir()
			run(t, "dpkg-deb", "-e", file, dir)
			conffiles, err := os.ReadFile(filepath.Join(dir, "conffiles"))
			bare := name == oci || name == guest // programs without configuration and scripts
			if err != nil && (!bare && name != docker || !errors.Is(err, fs.ErrNotExist)) {
				t.Fatal(err)
			}
			var etc []string
			pages, shells, links := 0, 0, 0
			for line := range strings.Lines(run(t, "dpkg-deb", "-c", file)) {
				f := strings.Fields(line)
				mode, owner, path := f[0], f[1], strings.TrimPrefix(f[5], ".")
				want := "-rw-r--r--"
				switch {
				case strings.HasSuffix(path, "/"):
					want = "drwxr-xr-x"
				case strings.HasPrefix(path, "/usr/bin/"):
					want = "-rwxr-xr-x"
				case path == "/lib/systemd/system-generators/longshore-generator" && f[len(f)-1] == "/usr/bin/longshore":
					want = "lrwxrwxrwx"
					links++
				case path == "/usr/lib/nomad/plugins/longshore" && f[len(f)-1] == "../../../bin/longshore":
					want = "lrwxrwxrwx"
				}
				if mode != want || owner != "root/root" {
					t.Errorf("%s: %s is %s of %s", name, path, mode, owner)
				}
				if strings.HasPrefix(path, "/usr/share/man/man1/longshore") && strings.HasSuffix(path, ".1.gz") {
					pages++
				}
				if slices.Contains(completions, path) {
					shells++
				}
				if strings.HasPrefix(path, "/etc/") && !strings.HasSuffix(path, "/") {
					etc = append(etc, path)
				}
			}
			if name == engine && (pages < 80 || shells != len(completions)) {
				t.Errorf("%s: %d manual pages, completion for %d shells", name, pages, shells)
			}
			if name == engine && links != 1 {
				t.Errorf("%s: %d links of the generator", name, links)
			}
			slices.Sort(etc)
			if got := strings.Fields(string(conffiles)); !slices.Equal(got, etc) || len(etc) == 0 != (name == docker || bare) {
				t.Errorf("%s: conffiles %v, files in /etc %v", name, got, etc)
			}
			scripts, err := filepath.Glob(filepath.Join(dir, "p*"))
			if err != nil || len(scripts) < 2 != bare {
				t.Errorf("%s: scripts %v, %v", name, scripts, err)
			}
			for _, script := range scripts {
				run(t, "dash", "-n", script)
				text, err := os.ReadFile(script)
				if err != nil || !bytes.HasPrefix(text, []byte("#!/bin/sh\n")) || !bytes.Contains(text, []byte("\nset -e\n")) {
					t.Errorf("%s: it begins with %.20q, and must end at the first error", script, text)
				}
			}
			if v := strings.TrimSpace(run(t, "dpkg-deb", "-f", file, "Version")); v != "1.2.3" {
				t.Errorf("%s: version %s", name, v)
			}
		}
	})
}

// system is a root directory with dpkg's database, busybox, and stand-ins that write down their
// calls.
type system struct {
	t    *testing.T
	root string
}

func newSystem(t *testing.T) system {
	t.Helper()
	s := system{t, t.TempDir()}
	for _, dir := range []string{"bin", "dev", "etc", "proc", "run/systemd/system", "tmp", "usr/bin", "usr/sbin", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(s.path("dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	s.copy("/bin/busybox")
	// Busybox's own shell would take its applets before the stand-ins.
	s.copy("/bin/dash")
	for _, word := range strings.Fields(run(t, "ldd", "/bin/dash")) {
		if filepath.IsAbs(word) {
			s.copy(word)
		}
	}
	if err := os.Symlink("dash", s.path("bin/sh")); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"cat", "cp", "chmod", "grep", "mv", "rm", "rmdir", "sed"} {
		if err := os.Symlink("busybox", s.path("bin/"+applet)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"deb-systemd-helper", "deb-systemd-invoke", "systemctl", "systemd-sysusers", "chown", "modprobe", "sysctl"} {
		s.write("/usr/bin/"+name, "#!/bin/sh\necho ${0##*/} $* >>/calls\n", 0o755)
	}
	status := ""
	for _, name := range []string{"kmod", "procps", "systemd"} {
		status += "Package: " + name + "\nStatus: install ok installed\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@localhost>\nDescription: stand-in\n\n"
	}
	s.write("/var/lib/dpkg/status", status, 0o644)
	return s
}

func (s system) path(name string) string { return filepath.Join(s.root, name) }

func (s system) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// copy takes a program or library over from this machine.
func (s system) copy(name string) {
	s.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatalf("hack/deps.sh test: %v", err)
	}
	s.write(name, string(b), 0o755)
}

// read is a file's text, "" where there is none.
func (s system) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(s.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return string(b)
}

func (s system) exists(name string) bool {
	_, err := os.Lstat(s.path(name))
	return err == nil
}

// dpkg runs dpkg on the system and returns the calls to the stand-ins that start or stop
// something, and its output.
func (s system) dpkg(args ...string) (calls []string, out string, err error) {
	s.t.Helper()
	_ = os.Remove(s.path("calls"))
	cmd := exec.CommandContext(s.t.Context(), "dpkg", append([]string{"--root=" + s.root, "--log=" + s.path("var/log/dpkg.log")}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	b, err := cmd.CombinedOutput()
	for line := range strings.Lines(s.read("calls")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "deb-systemd-helper") && !strings.HasSuffix(line, "daemon-reload") && !strings.HasPrefix(line, "systemctl --quiet is-active") {
			calls = append(calls, line)
		}
	}
	return calls, string(b), err
}

func (s system) want(calls []string, args ...string) {
	s.t.Helper()
	got, out, err := s.dpkg(args...)
	if err != nil {
		s.t.Fatalf("dpkg %s: %v: %s", args[0], err, out)
	}
	if !slices.Equal(got, calls) {
		s.t.Errorf("dpkg %s called\n%s\nwanted\n%s", args[0], strings.Join(got, "\n"), strings.Join(calls, "\n"))
	}
}

// TestPackageLife installs, upgrades, removes and purges the packages.
func TestPackageLife(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newSystem(t)
		first, second := build(t, "1.0.0", "none", engine, kubernetes), build(t, "2.0.0", "none", engine, kubernetes)
		start := []string{"deb-systemd-invoke start longshore.socket longshore-cri.socket", "deb-systemd-invoke restart longshore.service"}
		settle := []string{
			"modprobe -a -q overlay br_netfilter", "sysctl -q -p /etc/sysctl.d/60-longshore-kubernetes.conf",
			"deb-systemd-invoke try-restart longshore.service",
		}

		s.want(slices.Concat(start, settle), "-i", first[engine], first[kubernetes])
		if text := s.read("etc/crictl.yaml"); !strings.Contains(text, "unix:///run/longshore/cri.sock") {
			t.Errorf("crictl.yaml: %q", text)
		}

		// An upgrade leaves the administrator's changes.
		const config, mine = "etc/longshore/config.toml", "# mine\n"
		s.write(config, s.read(config)+mine, 0o644)
		s.write("var/lib/longshore/image/blob", "data", 0o600)
		s.write("etc/longshore/conf.d/99-mine.toml", "[engine]\nno_such_key = 1\n", 0o644)
		calls, out, err := s.dpkg("-i", second[engine])
		if err == nil || len(calls) != 0 || !strings.Contains(out, "no_such_key") || !strings.Contains(out, "predecessor goes on") {
			t.Errorf("an upgrade with a wrong configuration: %v, %v, %s", err, calls, out)
		}
		s.write("etc/longshore/conf.d/99-mine.toml", "[engine]\nruntime = \"native\"\n", 0o644)
		s.want(start, "--configure", engine) // no agent answers here, so it is restarted
		s.want(settle, "-i", second[kubernetes])
		if !strings.HasSuffix(s.read(config), mine) || !s.exists("var/lib/longshore/image/blob") {
			t.Error("the upgrade has taken what is not its own")
		}

		// So does a removal, which stops the agent.
		s.want([]string{"deb-systemd-invoke stop longshore-cri.socket longshore.socket longshore.service"}, "--remove", kubernetes, engine)
		if s.exists("usr/bin/longshore") || !strings.HasSuffix(s.read(config), mine) || !s.exists("var/lib/longshore/image/blob") || !s.exists("etc/longshore/conf.d/50-kubernetes.toml") {
			t.Error("the removal has left the program, or taken what is not its own")
		}

		// A purge takes all, but nothing that is mounted there.
		if err := errors.Join(
			unix.Mount("proc", s.path("proc"), "proc", 0, ""),
			os.MkdirAll(s.path("var/lib/longshore/volumes/theirs"), 0o755),
			os.MkdirAll(s.path("theirs"), 0o755),
			os.MkdirAll(s.path("run/longshore"), 0o755),
			os.WriteFile(s.path("theirs/file"), []byte("precious"), 0o600),
			unix.Mount(s.path("theirs"), s.path("var/lib/longshore/volumes/theirs"), "", unix.MS_BIND, ""),
		); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("proc"), unix.MNT_DETACH) })
		if _, out, err := s.dpkg("--purge", kubernetes, engine); err == nil || !strings.Contains(out, "mounted below /var/lib/longshore") {
			t.Errorf("a purge of what somebody has mounted: %v, %s", err, out)
		}
		if s.read("theirs/file") != "precious" {
			t.Error("the purge has emptied what is mounted")
		}
		if err := unix.Unmount(s.path("var/lib/longshore/volumes/theirs"), 0); err != nil {
			t.Fatal(err)
		}
		// A file system of its own stays, empty.
		if !s.exists("run/longshore") {
			t.Fatal("what was refused has taken something already")
		}
		if err := unix.Mount("tmpfs", s.path("run/longshore"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		s.write("run/longshore/.hidden/x", "", 0o644)
		s.write("run/longshore/keeper/log", "", 0o644)
		s.want(nil, "--purge", engine)
		if left, err := os.ReadDir(s.path("run/longshore")); err != nil || len(left) != 0 {
			t.Errorf("in /run/longshore: %v, %v", left, err)
		}
		if err := errors.Join(unix.Unmount(s.path("run/longshore"), 0), os.Remove(s.path("run/longshore"))); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"etc/longshore", "etc/crictl.yaml", "etc/modules-load.d/longshore-kubernetes.conf", "etc/sysctl.d/60-longshore-kubernetes.conf", "var/lib/longshore"} {
			if s.exists(name) {
				t.Errorf("left: /%s", name)
			}
		}
		if left := run(t, "dpkg-query", "--admindir="+s.path("var/lib/dpkg"), "-W", "-f", "${Package} ${Status}\n"); strings.Contains(left, engine) {
			t.Errorf("dpkg knows of\n%s", left)
		}
	})
}

// TestTheDockerPackageTakesTheSocket installs and removes longshore-docker: the face is on only while it is installed, and an
// administrator's change of its configuration comes back with it.
func TestTheDockerPackageTakesTheSocket(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s, debs := newSystem(t), build(t, "1.0.0", "none", engine, docker)
		if _, out, err := s.dpkg("-i", debs[engine]); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		took := []string{"systemd-sysusers longshore-docker.conf", "deb-systemd-invoke stop longshore.service", "deb-systemd-invoke start longshore-docker.socket longshore.service"}
		gave := []string{"deb-systemd-invoke stop longshore.service longshore-docker.socket", "deb-systemd-invoke start longshore.service"}
		const config, mine = "etc/longshore/conf.d/50-docker.toml", "# mine\n"
		shown := func() string {
			out, err := exec.CommandContext(t.Context(), filepath.Join(nodetest.Bin(t), "longshore"), "config", "show", "--config", s.path("etc/longshore/config.toml")).CombinedOutput()
			if err != nil {
				t.Fatalf("config show: %v: %s", err, out)
			}
			return string(out)
		}
		s.want(took, "-i", debs[docker])
		if text := shown(); !strings.Contains(text, "socket = \"/run/docker.sock\"") && !strings.Contains(text, "socket = '/run/docker.sock'") {
			t.Errorf("the configuration: %s", text)
		}
		s.want(gave, "--remove", docker)
		if s.exists(config) {
			t.Error("the face is on without the package")
		}
		s.want(took, "-i", debs[docker])
		s.write(config, s.read(config)+mine, 0o644)
		s.want(gave, "--remove", docker)
		if s.exists(config) {
			t.Error("the changed face is on without the package")
		}
		s.want(took, "-i", debs[docker])
		if !strings.HasSuffix(s.read(config), mine) {
			t.Errorf("the change is lost: %s", s.read(config))
		}
		s.want(gave, "--remove", docker)
		s.want(nil, "--purge", docker)
		if s.exists(config+".saved") || s.exists("lib/systemd/system/longshore-docker.socket") {
			t.Error("the purge has left files")
		}
	})
}

// TestThePackageSaysWhatTheMachineLacks installs it where there are no cgroups, and again where there are.
func TestThePackageSaysWhatTheMachineLacks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newSystem(t)
		install := func(version string) string {
			t.Helper()
			_, out, err := s.dpkg("-i", build(t, version, "none", engine)[engine])
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "ok") {
					t.Errorf("it prints what is in order: %q", line)
				}
			}
			return out
		}
		const lack, hint = "/sys/fs/cgroup", "mount the cgroups of this machine at /sys/fs/cgroup"
		if out := install("1.0.0"); !strings.Contains(out, lack) || !strings.Contains(out, hint) {
			t.Errorf("without cgroups it prints %s", out)
		}
		if err := errors.Join(os.MkdirAll(s.path("sys/fs/cgroup"), 0o755), unix.Mount("tmpfs", s.path("sys/fs/cgroup"), "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(s.path("sys/fs/cgroup"), unix.MNT_DETACH) })
		if out := install("2.0.0"); strings.Contains(out, hint) {
			t.Errorf("with cgroups it prints %s", out)
		}
	})
}

// TestPackageKeepsForeignCrictlConfig: crictl's configuration is often there before us.
func TestPackageKeepsForeignCrictlConfig(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newSystem(t)
		const theirs = "runtime-endpoint: unix:///run/containerd/containerd.sock\n"
		s.write("etc/crictl.yaml", theirs, 0o644)
		debs := build(t, "1.0.0", "none", engine, kubernetes)
		for _, args := range [][]string{{"-i", debs[engine], debs[kubernetes]}, {"--purge", kubernetes, engine}} {
			if _, out, err := s.dpkg(args...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := s.read("etc/crictl.yaml"); got != theirs {
				t.Errorf("after dpkg %s: %q", args[0], got)
			}
		}
	})
}

// TestNomadAndOCIPackages: longshore-oci takes its program from an older longshore, and the Nomad package says where a client
// with plugins of its own looks for them.
func TestNomadAndOCIPackages(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s, debs := newSystem(t), build(t, "1.0.0", "none", engine, oci, nomad)
		if calls, out, err := s.dpkg("-i", debs[oci]); err != nil || len(calls) != 0 || !s.exists("usr/bin/longshore-oci") {
			t.Errorf("longshore-oci by itself: %v, %v: %s", err, calls, out)
		}
		s.write("etc/nomad.d/nomad.hcl", "data_dir = \"/opt/nomad\"\n  plugin_dir = \"/opt/nomad/plugins\"\n", 0o644)
		_, out, err := s.dpkg("-i", debs[engine], debs[nomad])
		if err != nil || !strings.Contains(out, "nomad.hcl sets plugin_dir: ln -s /usr/bin/longshore /opt/nomad/plugins/longshore") {
			t.Errorf("beside other plugins: %v: %s", err, out)
		}
		if link, err := os.Readlink(s.path("usr/lib/nomad/plugins/longshore")); err != nil || !s.exists(filepath.Join("usr/lib/nomad/plugins", link)) {
			t.Errorf("the plugin: %q, %v", link, err)
		}
		s.want(nil, "--purge", nomad, oci)
		if s.exists("etc/nomad.d/longshore.hcl") || s.exists("usr/lib/nomad") || !s.exists("etc/nomad.d/nomad.hcl") {
			t.Error("the purge has left files, or taken what is not its own")
		}
	})
}

// TestHubPackageLife: the hub is started by nobody but the administrator, and its records go with
// the purge alone.
func TestHubPackageLife(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newSystem(t)
		first, second := build(t, "1.0.0", "none", hub), build(t, "2.0.0", "none", hub)
		settle := []string{
			"systemd-sysusers longshore-hub.conf", "chown root:longshore-hub /etc/longshore-hub", "deb-systemd-invoke try-restart longshore-hub.service",
		}
		s.want(settle, "-i", first[hub])
		if info, err := os.Stat(s.path("etc/longshore-hub")); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("the passphrase's directory: %v, %v", info.Mode(), err)
		}
		const options, mine = "etc/longshore-hub/options", "LONGSHORE_HUB_OPTIONS=\"--advertise 192.0.2.1:2377\"\n"
		s.write(options, mine, 0o644)
		s.write("etc/longshore-hub/passphrase", "secret", 0o600)
		s.write("var/lib/longshore-hub/etcd/member", "data", 0o600)
		s.want(settle, "-i", second[hub])
		s.want([]string{"deb-systemd-invoke stop longshore-hub.service"}, "--remove", hub)
		if s.exists("usr/bin/longshore-hub") || s.read(options) != mine || !s.exists("etc/longshore-hub/passphrase") || !s.exists("var/lib/longshore-hub/etcd/member") {
			t.Error("the removal has left the program, or taken what is the administrator's")
		}
		s.want(nil, "--purge", hub)
		for _, name := range []string{"etc/longshore-hub", "var/lib/longshore-hub"} {
			if s.exists(name) {
				t.Errorf("left: /%s", name)
			}
		}
	})
}
