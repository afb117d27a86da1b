package node

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestContainersThatJoinAnother has containers in the network, pid and ipc namespace of another one, over its
// restart, the agent's death, a power cut and its removal.
func TestContainersThatJoinAnother(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		// web has a page with the number of its runs.
		must(t, n, "run", "-d", "--name", "web", "--hostname", "front", "--restart", "always", "--ipc", "shareable", image,
			"/bin/sh", "-c", "echo run >> /runs; mkdir -p /www; wc -l < /runs > /www/n; cp /www/n /dev/shm/n; exec httpd -f -p 80 -h /www")
		side := func(name string, args ...string) {
			must(t, n, append(append([]string{"run", "-d", "--name", name, "--restart", "unless-stopped"}, args...), image, "/bin/sleep", "1000")...)
		}
		side("net", "--network", "container:web")
		side("pid", "--pid", "container:web")
		side("ipc", "--ipc", "container:web")
		page := func(runs string) {
			t.Helper()
			roottest.Eventually(t, "net reads the page of run "+runs+" from its own loopback", func() bool {
				out, err := n.CLI("exec", "net", "wget", "-qO-", "http://127.0.0.1/n")
				return err == nil && strings.TrimSpace(out) == runs
			})
			roottest.Eventually(t, "ipc sees the shared memory of run "+runs, func() bool {
				out, err := n.CLI("exec", "ipc", "cat", "/dev/shm/n")
				return err == nil && strings.TrimSpace(out) == runs
			})
			roottest.Eventually(t, "pid sees web's program", func() bool {
				out, err := n.CLI("exec", "pid", "ps")
				return err == nil && strings.Contains(out, "httpd")
			})
		}
		page("1")
		id := must(t, n, "inspect", "-f", "{{.Id}}", "web")
		address := must(t, n, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", "web")
		for _, line := range []struct{ name, format, want string }{
			{"net", "{{.HostConfig.NetworkMode}} {{.Config.Hostname}} {{len .NetworkSettings.Networks}}", "container:" + id + " front 0"},
			{"pid", "{{.HostConfig.PidMode}}", "container:" + id},
			{"ipc", "{{.HostConfig.IpcMode}}", "container:" + id},
			{"web", "{{.HostConfig.IpcMode}}", "shareable"},
		} {
			if got := must(t, n, "inspect", "-f", line.format, line.name); got != line.want {
				t.Errorf("%s of %s: %q, want %q", line.format, line.name, got, line.want)
			}
		}
		if hosts := must(t, n, "exec", "net", "cat", "/etc/hosts"); !strings.Contains(hosts, address+"\tfront") {
			t.Errorf("the hosts of net:\n%s", hosts)
		}
		started := must(t, n, "inspect", "-f", "{{.State.StartedAt}}", "net")

		must(t, n, "restart", "-t", "1", "web")
		page("2")
		if out := must(t, n, "events", "--since", "1h", "--until", "0s", "--filter", "container=pid"); !strings.Contains(out, "at the end of container "+id[:12]) {
			t.Errorf("the events of pid:\n%s", out)
		}
		must(t, n, "stop", "-t", "0", "web")
		if got := must(t, n, "exec", "net", "ip", "-o", "addr", "show", "eth0"); !strings.Contains(got, address+"/") {
			t.Errorf("without web, net has %s", got)
		}
		waitFor(t, n, "pid", "{{.State.Status}}", "restarting")
		must(t, n, "start", "web")
		page("3")
		if again := must(t, n, "inspect", "-f", "{{.State.StartedAt}}", "net"); again != started {
			t.Error("net was started again, though its network stayed")
		}
		n.Kill()
		n.Up()
		must(t, n, "restart", "-t", "0", "net")
		page("3")
		n.PowerCut()
		n.Up()
		page("4")
		n.Check()

		// Docker's answers.
		for _, c := range []struct{ text, flags string }{
			{"ports cannot be published", "--network container:web -p 1:1"},
			{"a host name cannot be combined", "--network container:web --hostname x"},
			{"a line of /etc/hosts cannot", "--network container:web --add-host a:1.2.3.4"},
			{"a DNS server, search domain or option cannot", "--network container:web --dns 1.1.1.1"},
			{"an address or an alias cannot", "--network container:web --ip 10.0.0.9"},
			{"is private; create that container with --ipc shareable", "--ipc container:net"},
			{"a user namespace of its own", "--network container:web --userns private"},
			{"cannot be set in the namespace of another", "--network container:web --sysctl net.ipv4.ip_forward=1"},
			{`container "nobody": not found`, "--pid container:nobody"},
		} {
			args := append(append([]string{"run", "--rm"}, strings.Fields(c.flags)...), image, "true")
			if _, err := n.CLI(args...); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", c.flags, err)
			}
		}
		// A holder is started again while the kernel ends others that are removed then.
		must(t, n, "run", "-d", "--name", "h", image, "/bin/sleep", "1000")
		for range 4 {
			for range 3 {
				must(t, n, "run", "-d", "--rm", "--network", "container:h", "--pid", "container:h", image, "/bin/sleep", "1000")
			}
			must(t, n, "restart", "-t", "0", "h")
		}
		// One that was created with --rm waits for its first start.
		must(t, n, "create", "--rm", "--name", "later", "--pid", "container:h", image, "/bin/sleep", "1000")
		must(t, n, "restart", "-t", "0", "h")
		must(t, n, "start", "later")
		must(t, n, "rm", "-f", "later", "h")
		n.Check()
		must(t, n, "rm", "-f", "web")
		nodetest.Eventually(t, "the end of a container in the removed PID namespace", func() bool { // a start of one that runs succeeds
			out, err := n.CLI("inspect", "--format", "{{.State.Status}}", "pid")
			return err == nil && strings.TrimSpace(out) == "exited"
		})
		if out, err := n.CLI("start", "pid"); err == nil || !strings.Contains(err.Error(), "was removed") {
			t.Errorf("a start without the holder: %s, %v", out, err)
		}
		n.Check()
		must(t, n, "rm", "-f", "net", "pid", "ipc")
		clean(t, n)
	})
}

// TestLinksFollowTheirTargets has links on the default network, over restarts of the target with another address, a power
// cut, and its removal.
func TestLinksFollowTheirTargets(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		must(t, n, "run", "-d", "--name", "db", "--hostname", "store", "--restart", "always", image,
			"/bin/sh", "-c", "mkdir -p /www; echo data > /www/page; exec httpd -f -p 80 -h /www")
		must(t, n, "run", "-d", "--name", "web", "--link", "db:database", "--restart", "always", image, "/bin/sleep", "1000")
		reads := func() {
			t.Helper()
			for _, name := range []string{"database", "db", "store"} {
				roottest.Eventually(t, "web reads the page by the name "+name, func() bool {
					out, err := n.CLI("exec", "web", "wget", "-qO-", "http://"+name+"/page")
					return err == nil && out == "data\n"
				})
			}
		}
		reads()
		if got := must(t, n, "inspect", "-f", "{{.HostConfig.Links}}", "web"); got != "[/db:/web/database]" {
			t.Errorf("inspect shows %s", got)
		}
		address := must(t, n, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", "db")
		must(t, n, "stop", "-t", "0", "db")
		must(t, n, "run", "-d", "--name", "taker", "--ip", address, image, "/bin/sleep", "1000") // the address is another one's now
		must(t, n, "start", "db")
		if now := must(t, n, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", "db"); now == address {
			t.Fatalf("db has still %s", now)
		}
		reads()
		n.PowerCut()
		n.Up()
		reads()
		n.Check()
		must(t, n, "stop", "-t", "0", "web", "db")
		if out, err := n.CLI("start", "web"); err == nil || !strings.Contains(err.Error(), "it needs container db, which is exited; start that one first") {
			t.Errorf("a start without the target: %s, %v", out, err)
		}
		for _, c := range []struct{ text, flags string }{
			{`find container "nobody": not found`, "--link nobody"},
			{"it needs container db, which is exited", "--link db"},
			{"a link cannot be combined with network host", "--link db --network host"},
			{"is not NAME or NAME:ALIAS", "--link db:a/b"},
		} {
			args := append(append([]string{"run", "--rm"}, strings.Fields(c.flags)...), image, "true")
			if _, err := n.CLI(args...); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", c.flags, err)
			}
		}
		must(t, n, "stop", "-t", "0", "taker")
		if _, err := n.CLI("start", "web", "taker"); err == nil {
			t.Error("a start of web and taker has succeeded without the target of web")
		}
		waitFor(t, n, "taker", "{{.State.Status}}", "running") // the error of one container does not keep the other one from starting
		if _, err := n.CLI("run", "--rm", "--network", "container:db", image, "true"); err == nil || !strings.Contains(err.Error(), "which is exited; start it first") {
			t.Errorf("a container in the network of one that has ended: %v", err)
		}
		must(t, n, "rm", "-f", "db")
		must(t, n, "start", "web")
		if hosts := must(t, n, "exec", "web", "cat", "/etc/hosts"); strings.Contains(hosts, "database") {
			t.Errorf("the hosts of web after the removal of db:\n%s", hosts)
		}
		must(t, n, "rm", "-f", "web", "taker")
		clean(t, n)
	})
}
