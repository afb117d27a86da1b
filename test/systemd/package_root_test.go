package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// conflist is a file of a cluster's network plugin. Its bridge and addresses are the plugin's,
// and outlive ours.
const conflist = `{"cniVersion": "1.0.0", "name": "cluster", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "/run/cni", "subnet": "10.88.0.0/24"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}`

const configFile = "/etc/longshore/config.toml"

// TestPackage installs the Debian packages on a node as kubeadm wants it, upgrades
// them under running pods, removes and purges them.
func TestPackage(t *testing.T) {
	g := bareGuest(t)
	g.uninstall()
	g.baseDpkg()
	g.write("/etc/cni/net.d/10-cluster.conflist", conflist)
	end := g.podSlice()
	before := g.everything()

	g.run("dpkg", "-i", deb("1.0.0", "longshore"), deb("1.0.0", "longshore-kubernetes"))
	g.kubernetesNode()
	g.write(configFile, g.read(configFile)+"# the administrator's\n")
	image := g.Busybox(t)
	pod, containers := g.pod(image)
	keeper := nodetest.Pair("")
	others := g.workloads(image)
	was, main := containers.states(g), g.property(agent, "MainPID")
	processes := others.processes()
	t.Log("1.0.0 is installed, and containers of three faces run")

	// An agent that would not start replaces none.
	const broken = "/etc/longshore/conf.d/99-broken.toml"
	g.write(broken, "[engine]\nno_such_key = 1\n")
	if out, err := exec.CommandContext(t.Context(), "dpkg", "-i", deb("2.0.0", "longshore"), deb("2.0.0", "longshore-kubernetes")).CombinedOutput(); err == nil || !strings.Contains(string(out), "no_such_key") {
		t.Errorf("an upgrade with a wrong configuration: %v, %s", err, out)
	}
	if now := g.property(agent, "MainPID"); now != main {
		t.Errorf("the agent was %s and is %s", main, now)
	}
	containers.goOn(g, was)
	others.goOn(processes)
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}

	t.Log("an upgrade with a wrong configuration has changed nothing")
	g.run("dpkg", "--configure", "--pending")
	g.serves()
	if now := g.property(agent, "MainPID"); now != main { // it has executed the new program in place
		t.Errorf("the agent was %s and is %s", main, now)
	}
	for _, process := range []string{"agent 2.0.0, pid ", "keeper 2.0.0, pid "} {
		out, err := exec.CommandContext(t.Context(), "longshore", "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "process   "+process) {
			t.Errorf("no process %q: %v, %s", process, err, out)
		}
	}
	if v, err := g.CRI.Version(t.Context(), &v1.VersionRequest{}); err != nil || v.GetRuntimeVersion() != "2.0.0" {
		t.Errorf("after the upgrade: %v, %v", v, err)
	}
	containers.goOn(g, was)
	others.goOn(processes)
	if now := nodetest.Pair(""); !slices.Equal(slices.Sorted(slices.Values(now)), slices.Sorted(slices.Values(keeper))) {
		t.Errorf("keeper and nest were %v, and are %v", keeper, now)
	}
	if again := g.keeperOutside(); again != "" {
		t.Error(again)
	}
	if !strings.HasSuffix(g.read(configFile), "\n# the administrator's\n") {
		t.Error("the upgrade has overwritten the configuration")
	}
	t.Log("2.0.0 runs")
	// The older packages come back, and the newer ones again, under everything that runs.
	for _, version := range []string{"1.0.0", "2.0.0"} {
		stated := map[string]string{"1.0.0": "(devel)", "2.0.0": "2.0.0"}[version] // the first package has the programs of bin
		g.run("dpkg", "-i", deb(version, "longshore"), deb(version, "longshore-kubernetes"))
		g.serves()
		if now := g.property(agent, "MainPID"); now != main {
			t.Errorf("%s: the agent was %s and is %s", version, main, now)
		}
		for _, process := range []string{"agent ", "keeper "} {
			if out := g.run("longshore", "version"); !strings.Contains(out, "process   "+process+stated+", pid ") {
				t.Errorf("no process %s%s: %s", process, stated, out)
			}
		}
		containers.goOn(g, was)
		others.goOn(processes)
		t.Logf("%s is installed again", version)
	}

	g.kubernetesNode()
	third := pod.Run(t, g.counter(image, "third")) // by the new agent, with the new keeper
	if out := g.exec(third.ID, "echo here"); out != "here\n" {
		t.Errorf("exec: %q", out)
	}

	others.plugin.Signal(t, syscall.SIGKILL)
	others.plugin.Ended()

	// A removal leaves data, and nothing that runs.
	g.run("dpkg", "--remove", "longshore-kubernetes", "longshore")
	for _, s := range was {
		if _, err := os.Stat("/proc/" + s.pid); err == nil {
			t.Errorf("container %s runs on", s.pid)
		}
	}
	others.gone(processes)
	g.nothingRuns()
	if _, err := os.Stat("/usr/bin/longshore"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program: %v", err)
	}
	if !strings.HasSuffix(g.read(configFile), "\n# the administrator's\n") {
		t.Error("the removal has taken the configuration")
	}

	t.Log("the packages are removed")
	g.run("dpkg", "-i", deb("2.0.0", "longshore"), deb("2.0.0", "longshore-kubernetes"))
	g.serves()
	list, err := g.Images.ListImages(t.Context(), &v1.ListImagesRequest{})
	if err != nil || len(list.GetImages()) != 1 {
		t.Errorf("images after it was removed and installed again: %v, %v", list.GetImages(), err)
	}
	g.pod(image)
	g.run("dpkg", "--purge", "longshore-kubernetes", "longshore")
	g.nothingRuns()
	g.run("ip", "link", "delete", "cni0") // the plugin's
	var diff string
	t.Cleanup(func() {
		if diff != "" {
			t.Logf("left, or gone:\n%s", diff)
		}
	})
	nodetest.Eventually(t, "all is as before", func() bool {
		diff = differences(before, g.everything())
		return diff == ""
	})
	end()
}

func deb(version, name string) string {
	arch := "amd64"
	switch name {
	case "longshore-kubernetes", "longshore-nomad", "longshore-docker": // settings only
		arch = "all"
	}
	return fmt.Sprintf("/longshore/deb/%s_%s_%s.deb", name, version, arch)
}

// uninstall removes the files of `make install` and of other tests.
func (g guest) uninstall() {
	g.t.Helper()
	g.run("sh", "-c", `systemctl stop longshore.socket longshore-cri.socket longshore.service 2>/dev/null
rm -rf /usr/bin/longshore* /lib/systemd/system/longshore* /lib/systemd/system-generators/longshore* /usr/share/man/man1/longshore* /usr/share/bash-completion/completions/longshore /usr/share/zsh/vendor-completions/_longshore /usr/share/fish /etc/systemd/system/longshore* /etc/longshore /var/lib/longshore /run/longshore /etc/crictl.yaml
systemctl daemon-reload`)
}

// baseDpkg tells dpkg of packages that the guest has, though it did not install them.
func (g guest) baseDpkg() {
	g.t.Helper()
	var status strings.Builder
	for _, name := range []string{"kmod", "procps", "systemd"} {
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nVersion: 99\nArchitecture: all\nMaintainer: Nobody <nobody@localhost>\nDescription: unpacked\n\n", name)
	}
	g.write("/var/lib/dpkg/status", status.String())
	g.write("/var/lib/dpkg/status-old", status.String())
	g.write("/var/log/dpkg.log", "")
}

// kubernetesNode checks as kubeadm does before init and join, and kubelet at its start.
func (g guest) kubernetesNode() {
	g.t.Helper()
	g.serves()
	for _, unit := range []string{agent, "longshore.socket", "longshore-cri.socket"} {
		if state := g.run("systemctl", "is-enabled", unit); state != "enabled" {
			g.t.Errorf("%s is %s", unit, state)
		}
		if state := g.property(unit, "ActiveState"); state != "active" {
			g.t.Errorf("%s is %s", unit, state)
		}
	}
	s, err := g.CRI.Status(g.t.Context(), &v1.StatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, c := range s.GetStatus().GetConditions() {
		if !c.GetStatus() {
			g.t.Errorf("%v", c)
		}
	}
	r, err := g.CRI.RuntimeConfig(g.t.Context(), &v1.RuntimeConfigRequest{})
	if err != nil || r.GetLinux().GetCgroupDriver() != v1.CgroupDriver_SYSTEMD {
		g.t.Errorf("RuntimeConfig: %v, %v", r, err)
	}
	for _, name := range []string{"ipv4/ip_forward", "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if v := g.read("/proc/sys/net/" + name); v != "1\n" {
			g.t.Errorf("%s is %q", name, v)
		}
	}
	if text := g.read("/etc/crictl.yaml"); !strings.Contains(text, "runtime-endpoint: unix:///run/longshore/cri.sock\n") {
		g.t.Errorf("crictl.yaml: %s", text)
	}
}

func (g guest) read(path string) string {
	g.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(b)
}

// nothingRuns finds no process, unit, cgroup and mount of ours.
func (g guest) nothingRuns() {
	g.t.Helper()
	for _, name := range []string{"longshore", "longshore-keeper"} {
		if left := nodetest.Processes(name, ""); len(left) != 0 {
			g.t.Errorf("%s runs: %v", name, left)
		}
	}
	if units := g.run("systemctl", "list-units", "--no-legend", "--plain", "--state=active", "--type=service,socket,scope", "longshore*"); units != "" {
		g.t.Errorf("units left:\n%s", units)
	}
	for _, kept := range g.everything() {
		kind, name, _ := strings.Cut(kept, " ")
		if name != "/longshore" && kind != "file" && strings.Contains(name, "longshore") { // the guest's own disk
			g.t.Errorf("left: %s", kept)
		}
	}
}

// everything lists the node's things, a kind and a name in each line, sorted: files but for
// those of dpkg, the journal and the tests, mounts, cgroups but for those of systemd, and links
// but for those of the pods, which go a moment later.
func (g guest) everything() []string {
	g.t.Helper()
	var all []string
	for _, top := range []string{"/etc", "/usr", "/var", "/root", "/opt", "/run/longshore", "/sys/fs/cgroup"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case path == "/var/lib/dpkg", path == "/var/log", path == "/var/tmp", path == "/var/lib/systemd":
				return filepath.SkipDir
			case top != "/sys/fs/cgroup":
				all = append(all, "file "+path)
			case d.IsDir() && (strings.Contains(path, "longshore") || strings.Contains(path, "kubepods")):
				all = append(all, "cgroup "+path)
			}
			return nil
		})
		if err != nil {
			g.t.Fatal(err)
		}
	}
	for line := range strings.Lines(g.read("/proc/self/mountinfo")) {
		all = append(all, "mount "+strings.Fields(line)[4])
	}
	links, err := net.Interfaces()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, l := range links {
		all = append(all, "link "+l.Name)
	}
	slices.Sort(all)
	return all
}

// differences has a line for each element that one list has more often.
func differences(before, after []string) string {
	count := map[string]int{}
	for _, s := range before {
		count[s]--
	}
	for _, s := range after {
		count[s]++
	}
	var lines []string
	for s, n := range count {
		if n != 0 {
			lines = append(lines, fmt.Sprintf("%+d %s", n, s))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
