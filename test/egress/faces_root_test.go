package egress

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// lines removes the heads of a CRI log's lines.
func lines(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		_, text, _ := strings.Cut(line, " F ")
		b.WriteString(text)
	}
	return b.String()
}

func TestPodsWithAnAnnotation(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image := n.Busybox(t)
		pod := func(name, list string, change func(*runtimeapi.PodSandboxConfig)) (*nodetest.Pod, error) {
			cfg := n.PodConfig(name)
			if list != "" {
				cfg.Annotations = map[string]string{cri.EgressAnnotation: list}
			}
			if change != nil {
				change(cfg)
			}
			r, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				return nil, err
			}
			return n.Pod(r.GetPodSandboxId(), cfg), nil
		}
		own := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: []*runtimeapi.IDMapping{{HostId: 1 << 20, Length: 65536}}, Gids: []*runtimeapi.IDMapping{{HostId: 1 << 20, Length: 65536}}}
		for name, c := range map[string]struct {
			list, want string
			change     func(*runtimeapi.PodSandboxConfig)
		}{
			"open":   {"", networktest.ReachedAll, nil},
			"listed": {networktest.ReachList, networktest.ReachedList, nil},
			"its-dns": {networktest.ReachList, networktest.ReachedList, func(cfg *runtimeapi.PodSandboxConfig) {
				cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{networktest.WorldDNS}, Searches: []string{"default.svc.cluster.local"}}
			}},
			"its-user": {networktest.ReachList, networktest.ReachedList, func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = own }},
		} {
			p, err := pod(name, c.list, c.change)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			made := nodetest.ContainerConfig("app", image, "/bin/sh", "-c", networktest.ReachScript)
			if name == "its-user" {
				made.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: own}}}
			}
			app := p.Run(t, made)
			app.WaitExited(t)
			if got := lines(app.ReadLog(t)); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
			if c.list != "" {
				admin := nodetest.ContainerConfig("admin", image, "/bin/true")
				admin.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}}}}
				if _, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: admin, SandboxConfig: p.Config}); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
					t.Errorf("%s: a container with CAP_NET_ADMIN: %v", name, err)
				}
			}
			p.Remove(t)
		}
		for list, want := range map[string]string{"*.com": "top-level", " ": "the list is empty", "none internet": "alone"} {
			if _, err := pod("bad", list, nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", list, err, want)
			}
		}
		_, err := pod("host", "internet", func(cfg *runtimeapi.PodSandboxConfig) {
			cfg.Hostname = ""
			cfg.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		})
		if err == nil || !strings.Contains(err.Error(), "a network of the sandbox's own") {
			t.Errorf("a list on the host's network: %v", err)
		}
		n.Check()
	})
}

// TestNetworksOfEveryKind has lists on a network with names, on several networks, without one, and in another container's.
func TestNetworksOfEveryKind(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image := n.Busybox(t)
		must(t, n, "network", "create", "app")
		must(t, n, "network", "create", "back")
		for _, name := range []string{"db", "cache"} {
			must(t, n, "run", "-d", "--name", name, "--network", "app", image, "/bin/sh", "-c", "echo "+name+" > /n; while :; do nc -l -p 80 < /n; done")
		}
		run := func(name string, args ...string) {
			must(t, n, append(append([]string{"run", "-d", "--name", name}, args...), image, "/bin/sleep", "1000")...)
		}
		said := func(name, want string) {
			t.Helper()
			if out, err := n.CLI("exec", name, "/bin/sh", "-c", networktest.ReachScript); out != want {
				t.Errorf("%s: %q %v, want %q", name, out, err, want)
			}
		}
		run("open", "--network", "app")
		said("open", networktest.ReachedAll)
		reach(t, n, "open", "db", "80", true)

		run("outer", "--network", "app", "--egress", networktest.ReachList)
		said("outer", networktest.ReachedList)
		reach(t, n, "outer", "db", "80", false)
		run("one", "--network", "app", "--egress", "db:80")
		reach(t, n, "one", "db", "80", true)
		reach(t, n, "one", "cache", "80", false)
		run("all", "--network", "app", "--egress", "cluster", "--egress", networktest.ReachList)
		said("all", networktest.ReachedList)
		reach(t, n, "all", "db", "80", true)
		reach(t, n, "all", "cache", "80", true)

		run("none", "--network", "none", "--egress", networktest.ReachList)
		must(t, n, "network", "connect", "back", "none")
		said("none", networktest.ReachedList)
		must(t, n, "network", "connect", "back", "all")
		said("all", networktest.ReachedList)
		reach(t, n, "all", "db", "80", true)
		must(t, n, "network", "disconnect", "app", "all")
		said("all", networktest.ReachedList)

		// A container in another one's network has its list, and cannot have the capabilities to change it.
		run("beside", "--network", "container:outer")
		said("beside", networktest.ReachedList)
		for _, flags := range []string{"--cap-add NET_ADMIN", "--privileged", "--egress internet"} {
			args := append([]string{"create", "--network", "container:outer"}, strings.Fields(flags)...)
			if out, err := n.CLI(append(args, image, "/bin/true")...); err == nil {
				t.Errorf("in the network of a container with a list %s is not refused: %s", flags, out)
			}
		}
		must(t, n, "stop", "-t", "0", "outer")
		said("beside", networktest.ReachedList)
		must(t, n, "start", "outer")
		said("outer", networktest.ReachedList)
		n.Check()
		n.Kill()
		n.Up()
		for _, name := range []string{"outer", "all", "none", "beside"} {
			said(name, networktest.ReachedList)
		}
		n.Check()
	})
}

func TestComposeServicesWithALabel(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image := n.Busybox(t)
		file := filepath.Join(t.TempDir(), "compose.yaml")
		text := "services:\n  open:\n    image: " + image + "\n    command: [sleep, '1000']\n  listed:\n    image: " + image + "\n    command: [sleep, '1000']\n    labels:\n      longshore.egress: " + networktest.ReachList + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		must(t, n, "up", "-d", "-f", file, "-p", "project")
		for service, want := range map[string]string{"open": networktest.ReachedAll, "listed": networktest.ReachedList} {
			if out, err := n.CLI("exec", "project-"+service+"-1", "/bin/sh", "-c", networktest.ReachScript); out != want {
				t.Errorf("%s: %q %v, want %q", service, out, err, want)
			}
		}
		must(t, n, "down", "-f", file, "-p", "project", "-t", "0")
		n.Check()
	})
}

// TestCNI has a list in a network that CNI's plugins make.
func TestCNI(t *testing.T) {
	const plugins = "/usr/lib/cni"
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		networktest.NewReachWorld(t)
		conf := t.TempDir()
		list := `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","dataDir":"` + t.TempDir() + `","ranges":[[{"subnet":"10.79.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
		if err := os.WriteFile(filepath.Join(conf, "net.conflist"), []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"cni\"\n[network.cni]\nconf_dir = \"" + conf + "\"\nbin_dirs = [\"" + plugins + "\"]\n"})
		image := n.Busybox(t)
		for list, want := range map[string]string{"": networktest.ReachedAll, networktest.ReachList: networktest.ReachedList} {
			args := []string{"run", "--rm", "--dns", networktest.WorldDNS}
			if list != "" {
				args = append(args, "--egress", list)
			}
			if out, err := n.CLI(append(args, image, "/bin/sh", "-c", networktest.ReachScript)...); out != want {
				t.Errorf("list %q: %q %v, want %q", list, out, err, want)
			}
		}
		n.Check()
	})
}
