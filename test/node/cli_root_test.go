package node

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRunSaysWhatWentWrong: the exit status of `run` tells the program's mistakes from ours,
// the message names the cause, and nothing stays.
func TestRunSaysWhatWentWrong(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		if _, err := n.CLI("run", "-d", "--name", "taken", "-p", "18090:80", image, "/bin/sleep", "1000"); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			args   []string
			status int
			says   string
		}{
			"the program's own":  {[]string{image, "/bin/sh", "-c", "exit 7"}, 7, ""},
			"missing program":    {[]string{image, "/bin/nothing"}, 127, "/bin/nothing"},
			"directory":          {[]string{image, "/etc"}, 126, "/etc"},
			"unknown user":       {[]string{"-u", "ghost", image, "/bin/true"}, 125, "ghost"},
			"unknown capability": {[]string{"--cap-add", "NONSENSE", image, "/bin/true"}, 125, "NONSENSE"},
			"unknown image":      {[]string{"--pull", "never", "no/such:image"}, 125, "no/such:image"},
			"mount on a file":    {[]string{"-v", t.TempDir() + ":/etc/passwd", image, "/bin/true"}, 125, "/etc/passwd"},
			"name that is taken": {[]string{"--name", "taken", image, "/bin/true"}, 125, "taken"},
			"port that is taken": {[]string{"-p", "18090:80", image, "/bin/true"}, 125, "18090"},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := n.CLI(append([]string{"run", "--rm"}, tc.args...)...)
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != tc.status || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want status %d and %q", err, tc.status, tc.says)
				}
				// The agent reports an end just before it removes the sandbox.
				nodetest.Eventually(t, "the sandbox is removed", func() bool {
					out, err := n.CLI("sandboxes")
					return err == nil && strings.Count(out, "\n") == 2 // the header and the one that runs
				})
				clean(t, n)
			})
		}
		if _, err := n.CLI("rm", "-f", "taken"); err != nil {
			t.Error(err)
		}
		clean(t, n)
	})
}

// TestAnEndedContainerStartsAgain with the real kernel: its files, its name in the network and its port are as they were, by both
// runtimes, after a death of the agent too, and nothing stays.
func TestAnEndedContainerStartsAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cli := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(args...)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(out)
		}
		id := cli("run", "-d", "--name", "web", "-p", "18091:80", "-v", "data:/data", "--memory", "64m", "--init", image, "/bin/sh", "-c",
			"echo $(hostname) >> /runs; echo x >> /data/runs; echo 'by hand' >> /etc/hosts; ip -4 addr show eth0 >> /addrs; exec httpd -f -p 80 -h /")
		served := func(runs string) {
			t.Helper()
			var out string
			defer func() {
				if t.Failed() {
					t.Logf("it has: %q", out)
				}
			}()
			nodetest.Eventually(t, "it serves", func() bool {
				var err error
				out, err = n.CLI("exec", "web", "/bin/sh", "-c", "wget -q -O - http://127.0.0.1/runs; cat /data/runs; grep -c 'by hand' /etc/hosts; grep -c inet /addrs; grep inet /addrs | sort -u | wc -l; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes")
				_ = err // one of the two files does not exist
				return out == runs+"67108864\n"
			})
			if out := cli("port", "web"); out != "80/tcp -> 0.0.0.0:18091" {
				t.Errorf("ports: %q", out)
			}
		}
		served("web\nx\n1\n1\n1\n")
		cli("stop", "-t", "0", "web")
		if got := cli("start", "web"); got != "web" {
			t.Errorf("start: %q", got)
		}
		served("web\nweb\nx\nx\n1\n2\n1\n")
		n.Kill()
		n.Up()
		cli("restart", "-t", "0", "web")
		served("web\nweb\nweb\nx\nx\nx\n1\n3\n1\n")
		if out := cli("ps", "-q", "--no-trunc"); out != id {
			t.Errorf("ps: %q, want %s", out, id)
		}
		clean(t, n)
		if _, err := n.CLI("run", "--name", "task", image, "/bin/sh", "-c", "echo run >> /f; wc -l < /f; exit 3"); err == nil {
			t.Error("exit 3 is told as success")
		}
		out, err := n.CLI("start", "-a", "task")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || out != "2\n" {
			t.Errorf("start -a: %q, %v", out, err)
		}
		cli("create", "--name", "made", image, "/bin/true")
		cli("start", "made")
		cli("rm", "-f", "web", "task", "made")
		clean(t, n)
	})
}

// TestFlagsReachTheContainer: a program finds the effect of each flag that people add to docker run.
func TestFlagsReachTheContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		dir := t.TempDir()
		out, err := n.CLI("run", "--rm", "--name", "all", "-m", "64m", "--memory-swap", "64m", "--pids-limit", "50", "-h", "here", "--shm-size", "1m", "--tmpfs", "/t:size=2m,exec",
			"--mount", "type=tmpfs,target=/u,tmpfs-size=3m", "-v", dir+":/d:ro,z", "-v", "/anon", "--ulimit", "nofile=77:99", "--device", "/dev/full:/dev/f:r", "--sysctl", "net.core.somaxconn=7",
			"--security-opt", "systempaths=unconfined", "--group-add", "4242", "--cpu-shares", "512", "--oom-score-adj", "321", "--add-host", "other:10.9.8.7",
			"--dns-search", "example.org", "--cidfile", dir+"/id", image, "--", "/bin/sh", "-c",
			`hostname; df -k /dev/shm /t /u | awk '/tmpfs|shm/ {print $2}'; grep ' /t ' /proc/mounts | grep -c noexec; touch /d/x 2>&1 | grep -c 'Read-only'; touch /anon/x && echo written;
			ulimit -n; ulimit -Hn; ls -l /dev/f | cut -c1; cat /proc/sys/net/core/somaxconn; id -G; cat /proc/self/oom_score_adj; grep -c '10.9.8.7.*other' /etc/hosts; grep -c 'search example.org' /etc/resolv.conf;
			mount | grep -c ' /proc/kcore '; true`)
		if want := "here\n1024\n2048\n3072\n0\n1\nwritten\n77\n99\nc\n7\n0 4242\n321\n1\n1\n0\n"; err != nil || out != want {
			t.Errorf("got %q, %v\nwant %q", out, err, want)
		}
		if id, err := os.ReadFile(dir + "/id"); err != nil || len(id) != 64 {
			t.Errorf("the file with the ID: %q, %v", id, err)
		}
		if _, err := n.CLI("run", "--rm", "--cidfile", dir+"/id", image, "/bin/true"); err == nil || !strings.Contains(err.Error(), "exists") {
			t.Errorf("the file is there: %v", err)
		}
		out, err = n.CLI("run", "--rm", "--pid", "host", "--ipc", "host", "--uts", "host", "--net", "host", image, "/bin/sh", "-c", "for k in pid ipc uts net; do readlink /proc/self/ns/$k; done")
		var own []string
		for _, kind := range []string{"pid", "ipc", "uts", "net"} {
			ns, rerr := os.Readlink("/proc/self/ns/" + kind)
			if rerr != nil {
				t.Fatal(rerr)
			}
			own = append(own, ns)
		}
		if err != nil || out != strings.Join(own, "\n")+"\n" {
			t.Errorf("the host's namespaces: %q, %v, want %q", out, err, own)
		}
		if _, err := n.CLI("run", "-d", "--name", "ports", "--expose", "80-81", "-P", "-p", "18095-18096:90-91/udp", image, "/bin/sleep", "1000"); err != nil {
			t.Fatal(err)
		}
		if out, err := n.CLI("port", "ports"); err != nil || strings.Count(out, "\n") != 4 || !strings.Contains(out, "91/udp -> 0.0.0.0:18096") || !strings.Contains(out, "81/tcp -> 0.0.0.0:") {
			t.Errorf("ports: %q, %v", out, err)
		}
		addr, err := n.CLI("exec", "ports", "/bin/sh", "-c", "ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.CLI("run", "--rm", "--ip", strings.TrimSpace(addr), image, "/bin/true"); err == nil || !strings.Contains(err.Error(), "in use by container ports") {
			t.Errorf("an address that another container has: %v", err)
		}
		if _, err := n.CLI("rm", "-f", "-v", "ports"); err != nil {
			t.Error(err)
		}
		nodetest.Eventually(t, "the volumes without a name are gone", func() bool {
			out, err := n.CLI("volume", "ls")
			return err == nil && strings.Count(out, "\n") == 1
		})
		clean(t, n)
	})
}
