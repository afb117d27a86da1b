package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// must runs a command line and returns its output.
func must(t *testing.T, n *nodetest.Node, args ...string) string {
	t.Helper()
	out, err := n.CLI(args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return strings.TrimSpace(out)
}

// waitFor waits until inspect of a container prints something.
func waitFor(t *testing.T, n *nodetest.Node, name, format, want string) {
	t.Helper()
	roottest.Eventually(t, fmt.Sprintf("%s of %s is %q", format, name, want), func() bool {
		got, _ := n.CLI("inspect", "-f", format, name)
		return strings.TrimSpace(got) == want
	})
}

// TestContainersReturnAfterAPowerCut cuts the power three times under containers with each policy.
func TestContainersReturnAfterAPowerCut(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		must(t, n, "network", "create", "--subnet", "10.77.0.0/24", "app")
		run := func(name, policy string, args ...string) {
			line := append([]string{"run", "-d", "--name", name, "--restart", policy, "--label", "of=" + name}, args...)
			must(t, n, append(line, image, "/bin/sh", "-c", "echo run >> /data/runs; echo run >> /own; sync; exec sleep 1000")...)
		}
		run("db", "always", "--network", "app", "--ip", "10.77.0.9", "-v", "db:/data")
		run("web", "unless-stopped", "--network", "app", "-p", "8077:80", "-v", "web:/data", "--memory", "64m")
		run("job", "on-failure", "-v", "job:/data")
		run("plain", "no", "-v", "plain:/data")
		run("stopped", "unless-stopped", "-v", "stopped:/data")
		run("halted", "always", "-v", "halted:/data")
		for _, name := range []string{"db", "web", "job", "plain", "stopped", "halted"} {
			waitFor(t, n, name, "{{.State.Status}}", "running")
			roottest.Eventually(t, "its program runs", func() bool { out, _ := n.CLI("exec", name, "cat", "/own"); return strings.Contains(out, "run") })
		}
		must(t, n, "stop", "-t", "0", "stopped", "halted")
		must(t, n, "run", "-d", "--rm", "--name", "gone", image, "/bin/sleep", "1000")
		must(t, n, "create", "--name", "made", "--restart", "always", image, "/bin/true")
		network := must(t, n, "network", "inspect", "-f", "{{.ID}} {{(index .IPAM.Config 0).Subnet}}", "app")
		id := must(t, n, "inspect", "-f", "{{.Id}} {{.Created}} {{.Config.Labels.of}}", "web")

		for cut := 1; cut <= 3; cut++ {
			n.PowerCut()
			n.Up()
			for _, name := range []string{"db", "web", "job", "halted"} {
				waitFor(t, n, name, "{{.State.Status}} {{.RestartCount}}", "running 0")
				roottest.Eventually(t, fmt.Sprintf("%s has run %d times, with its files", name, cut+1), func() bool {
					out, _ := n.CLI("exec", name, "sh", "-c", "cat /data/runs /own | wc -l")
					return strings.TrimSpace(out) == fmt.Sprint(2*(cut+1))
				})
			}
			waitFor(t, n, "plain", "{{.State.Status}} {{.State.ExitCode}}", "exited 255")
			waitFor(t, n, "stopped", "{{.State.Status}} {{.State.ExitCode}}", "exited 137")
			if out := must(t, n, "ps", "-a", "--filter", "name=made", "--format", "{{.State}}"); out != "created" {
				t.Errorf("cut %d: a container that never ran is %q", cut, out)
			}
			if out := must(t, n, "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", "made"); out != "created 0" {
				t.Errorf("cut %d: inspect says of it %q", cut, out)
			}
			if out, err := n.CLI("inspect", "gone"); err == nil {
				t.Errorf("cut %d: a container with --rm has returned: %s", cut, out)
			}
			if out := must(t, n, "network", "inspect", "-f", "{{.ID}} {{(index .IPAM.Config 0).Subnet}}", "app"); out != network {
				t.Errorf("cut %d: the network is %q, was %q", cut, out, network)
			}
			if out := must(t, n, "inspect", "-f", "{{.Id}} {{.Created}} {{.Config.Labels.of}}", "web"); out != id {
				t.Errorf("cut %d: web is %q, was %q", cut, out, id)
			}
			if out := must(t, n, "inspect", "-f", "{{.NetworkSettings.Networks.app.IPAddress}}", "db"); out != "10.77.0.9" {
				t.Errorf("cut %d: the address of db is %q", cut, out)
			}
			if out := must(t, n, "exec", "web", "ping", "-c", "1", "-W", "5", "db"); !strings.Contains(out, "10.77.0.9") {
				t.Errorf("cut %d: %s", cut, out)
			}
			if out := must(t, n, "why", "plain"); !strings.Contains(out, "node restarted") {
				t.Errorf("cut %d: why: %s", cut, out)
			}
			n.Check()
		}
		must(t, n, "start", "plain", "made")
		waitFor(t, n, "plain", "{{.State.Status}}", "running")
		must(t, n, "rm", "-f", "db", "web", "job", "plain", "stopped", "halted", "made")
		must(t, n, "network", "rm", "app")
		clean(t, n)
	})
}

// TestACrashLoopHoldsNothing has thirty containers in their delays, kills the agent, and removes them.
func TestACrashLoopHoldsNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		const many = 30
		var names []string
		for i := range many {
			names = append(names, fmt.Sprint("loop", i))
			must(t, n, "run", "-d", "--name", names[i], "--restart", "always", image, "/bin/false")
		}
		for _, name := range names {
			// After the sixth restart the delay is more than six seconds.
			waitFor(t, n, name, "{{.State.Status}} {{.RestartCount}}{{.NetworkSettings.IPAddress}}", "restarting 7")
		}
		if out := must(t, n, "sandboxes", "--json"); strings.Contains(out, `"ready"`) {
			t.Errorf("a sandbox is ready in the delay: %s", out)
		}
		n.Kill()
		n.Up()
		for _, name := range names {
			roottest.Eventually(t, "the next agent restarts "+name, func() bool {
				out, _ := n.CLI("inspect", "-f", "{{.RestartCount}}", name)
				return strings.TrimSpace(out) > "7"
			})
		}
		n.Check()
		must(t, n, append([]string{"rm", "-f"}, names...)...)
		clean(t, n)
	})
}

// TestAnExportHasTheRootAlone exports a container that has renamed the parent of its mount points: the tar has the files below
// these, and nothing of the mounts.
func TestAnExportHasTheRootAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		must(t, n, "run", "--name", "first", n.Busybox(t), "/bin/sh", "-c",
			"mkdir /p; echo below > /p/own; echo one > /one; ln /one /two; mkdir /d$(printf '\\377')")
		must(t, n, "commit", "first", "own:1")
		host := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(host, []byte("of the host"), 0o600); err != nil {
			t.Fatal(err)
		}
		must(t, n, "run", "-d", "--name", "c", "-v", "hides:/p", "-v", "secret:/a/b", "-v", host+":/a/file", "own:1", "/bin/sh", "-c",
			"echo inside > /a/b/secret; echo inside > /p/secret; mv /a /c && echo moved; exec sleep 1000")
		roottest.Eventually(t, "the directory has moved", func() bool { out, _ := n.CLI("logs", "c"); return strings.Contains(out, "moved") })
		for _, state := range []string{"running", "ended"} {
			if state == "ended" {
				must(t, n, "stop", "-t", "0", "c")
			}
			file := filepath.Join(t.TempDir(), "c.tar")
			must(t, n, "container", "export", "-o", file, "c")
			out, err := exec.CommandContext(t.Context(), "tar", "-tf", file).Output()
			names := strings.Fields(string(out))
			for name, want := range map[string]bool{"p/own": true, "p/secret": false, "c/b/": true, "c/b/secret": false, "c/file": true, "a/": false, `d\377/`: true, "two": true} {
				if slices.Contains(names, name) != want {
					t.Errorf("%s: %s is in the tar: %t, %v", state, name, !want, err)
				}
			}
			if text, err := exec.CommandContext(t.Context(), "tar", "-xOf", file, "c/file").Output(); err != nil || len(text) > 0 {
				t.Errorf("%s: a mount's target has %q, %v", state, text, err)
			}
			if line, err := exec.CommandContext(t.Context(), "tar", "-tvf", file, "two").Output(); err != nil || !strings.Contains(string(line), "two link to one") {
				t.Errorf("%s: a hard link: %s, %v", state, line, err)
			}
		}
		must(t, n, "rm", "-f", "first", "c")
		clean(t, n)
	})
}
