package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestTheDebianPackage installs longshore and longshore-nomad with dpkg. Nomad finds the driver by the package's file. A
// task runs through an upgrade of the packages, a downgrade, and a restart of Nomad after each.
func TestTheDebianPackage(t *testing.T) {
	start(t, options{server: true, bare: true, debian: true}, func(r *rig) {
		r.run(ticks("packaged", ""))
		a := r.allocation("packaged", "running")
		dir := filepath.Join(r.dir, "data", "alloc", a.ID, "alloc")
		r.eventually("the task writes", func() bool { return strings.Contains(output(dir), "line 5\n") })
		container := r.container()
		agent := r.processes(agentArgs)
		plugins := r.plugins()
		if len(plugins) != 1 || plugins[0].program != "/usr/bin/longshore" {
			t.Fatalf("the plugins are %v", plugins)
		}

		for _, version := range []string{"2.0.0", "1.0.0"} {
			dpkg(t, version)
			if out, err := r.CLI("upgrade"); err != nil { // the package's script does it below systemd
				t.Fatalf("upgrade: %v: %s", err, out)
			}
			if now := r.plugins(); !slices.Equal(now, []process{{plugins[0].pid, "/usr/bin/longshore (deleted)"}}) {
				t.Errorf("%s: the plugins were %v, and are %v", version, plugins, now)
			}
			if now := r.processes(agentArgs); len(now) != 1 || !slices.Equal(now, agent) {
				t.Errorf("%s: the agent was %v, and is %v", version, agent, now)
			}
			r.waitForDriver("longshore")
			r.goesOn(a, container)
			if out := r.must("alloc", "exec", a.ID, "/bin/echo", "at your service"); !strings.Contains(out, "at your service") {
				t.Errorf("%s: an exec by the old plugin says %q", version, out)
			}

			r.stopNomad()
			r.startNomad()
			r.waitForDriver("longshore")
			r.eventually("Nomad has the task again", func() bool { return r.look(a).ClientStatus == "running" })
			r.goesOn(a, container)
			before := plugins
			if plugins = r.plugins(); len(plugins) != 1 || plugins[0].program != "/usr/bin/longshore" || plugins[0].pid == before[0].pid {
				t.Fatalf("%s: after Nomad's restart the plugins are %v", version, plugins)
			}
		}
		r.unbroken("packaged", nil, dir)
		r.purge("packaged")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// agentArgs are the first arguments of the installed agent.
const agentArgs = "/usr/bin/longshore\x00agent\x00"

// process is a process with the file of its program.
type process struct{ pid, program string }

// plugins returns Nomad's processes of our driver.
func (r *rig) plugins() []process {
	r.t.Helper()
	return r.processes("/usr/lib/nomad/plugins/longshore\x00")
}

// processes returns the processes with this beginning of a command line. A zero byte ends each argument.
func (r *rig) processes(args string) (found []process) {
	r.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if program, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && strings.HasPrefix(string(line), args) {
			found = append(found, process{filepath.Base(dir), program})
		}
	}
	return found
}

// debian installs the packages in the directories of this machine, which get a layer that the test alone sees,
// and returns a node of the installed programs, with the state where the driver expects it.
func debian(t *testing.T) nodetest.Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-node-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := syscall.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "run"), "/run/longshore"); err != nil {
		t.Fatal(err)
	}
	for _, top := range []string{"/etc", "/usr", "/var"} {
		layer := t.TempDir()
		for _, name := range []string{"upper", "work"} {
			if err := os.Mkdir(filepath.Join(layer, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Mount("overlay", top, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", top, layer)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(top, syscall.MNT_DETACH) })
	}
	dpkg(t, "1.0.0")
	return nodetest.Options{Dir: dir, Bin: "/usr/bin"}
}

// dpkg makes and installs this version of the packages. Its programs differ from those of other versions
// by text at their ends.
func dpkg(t *testing.T, version string) {
	t.Helper()
	out, bin := t.TempDir(), t.TempDir()
	programs, err := filepath.Glob(filepath.Join(nodetest.Bin(t), "longshore*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, filepath.Base(program)), append(b, version...), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "../../../hack/deb.sh")
	build.Env = append(os.Environ(), "VERSION="+version, "BIN="+bin, "OUT="+out, "COMPRESSION=none", "PACKAGES=longshore longshore-nomad")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("deb.sh: %v: %s", err, b)
	}
	debs, err := filepath.Glob(filepath.Join(out, "*.deb"))
	if err != nil || len(debs) != 2 {
		t.Fatalf("packages: %v, %v", debs, err)
	}
	if b, err := exec.CommandContext(t.Context(), "dpkg", append([]string{"--no-triggers", "-i"}, debs...)...).CombinedOutput(); err != nil {
		t.Fatalf("dpkg: %v: %s", err, b)
	}
}
