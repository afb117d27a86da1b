package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// host is a machine of the cluster: a network and a mount namespace, with a link on the bridge that
// all hosts share.
type host struct {
	name, dir, ip string

	t      *testing.T
	holder *exec.Cmd // keeps the namespaces
}

// furnish is the script of a host's holder in its new namespaces, before it waits. Programs find
// the host's own links in /sys, have a /run of their own, and write below /var into dir. The agent
// sees kubelet's mounts there.
const furnish = `
c=$(mktemp -d /run/cgroup.XXXXXX)
mount --rbind /sys/fs/cgroup $c
mount -t sysfs sysfs /sys
mount --move $c /sys/fs/cgroup
mount -t tmpfs tmpfs /run
for d in /var/lib /var/log; do
	mkdir -p "$0/over$d/upper" "$0/over$d/work"
	mount -t overlay -o lowerdir=$d,upperdir="$0/over$d/upper",workdir="$0/over$d/work" overlay $d
done
# The machine's name servers are not to be reached from here.
: >"$0/resolv.conf"
mount --bind "$0/resolv.conf" /etc/resolv.conf
echo "$1" >/proc/sys/kernel/hostname
mount --make-rshared /
echo ready
exec cat`

// newHost makes a host on the bridge.
func newHost(t *testing.T, dir, name, ip string) *host {
	t.Helper()
	h := &host{name: name, dir: filepath.Join(dir, name), ip: ip, t: t}
	mkdir(t, h.dir)
	h.holder = exec.Command("unshare", "--mount", "--net", "--uts", "--propagation", "private", "sh", "-ec", furnish, h.dir, name) //nolint:forbidigo // it outlives the contexts of subtests
	in, err := h.holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.holder.Stderr = os.Stderr
	if err := h.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = h.holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("host %s: %q, %v", name, line, err)
	}
	pid := fmt.Sprint(h.holder.Process.Pid)
	command(t, "ip", "link", "add", "to-"+name, "master", lan, "type", "veth", "peer", "name", "eth0", "netns", pid)
	command(t, "ip", "link", "set", "to-"+name, "up")
	h.run("ip", "link", "set", "lo", "up")
	h.run("ip", "address", "add", ip+"/24", "dev", "eth0")
	h.run("ip", "link", "set", "eth0", "up")
	h.run("ip", "route", "add", "default", "via", controlIP)
	return h
}

// inside are the words that run a program on the host.
func (h *host) inside(args ...string) []string {
	ns := fmt.Sprintf("/proc/%d/ns/", h.holder.Process.Pid)
	return append([]string{"nsenter", "--net=" + ns + "net", "--mount=" + ns + "mnt", "--uts=" + ns + "uts", "--"}, args...)
}

// run runs a program on the host to its end.
func (h *host) run(args ...string) string {
	h.t.Helper()
	return command(h.t, h.inside(args...)...)
}

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput() //nolint:forbidigo // cleanups call it too
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// program is a server of the cluster.
type program struct {
	t    *testing.T
	args []string
	log  string
	ok   func(ctx context.Context) bool // it serves
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// up starts it and waits until it serves.
func (p *program) up() {
	p.t.Helper()
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...) //nolint:forbidigo // it outlives the contexts of subtests
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(p.cmd, p.done)
	nodetest.Eventually(p.t, p.name()+" serves", func() bool {
		select {
		case <-p.done:
			p.t.Fatalf("%s ended:\n%s", p.name(), p.tail(40))
		default:
		}
		return p.ok(p.t.Context())
	})
}

// down ends it and waits until it is gone.
func (p *program) down(sig syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	<-p.done
	p.cmd = nil
}

func (p *program) name() string { return strings.TrimSuffix(filepath.Base(p.log), ".log") }

// tail are the last errors and warnings of its log.
func (p *program) tail(most int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return l == "" || strings.HasPrefix(l, "I") })
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// start starts a program that ends with the test.
func start(t *testing.T, dir, name string, ok func(ctx context.Context) bool, args ...string) *program {
	t.Helper()
	p := &program{t: t, args: args, ok: ok, log: filepath.Join(dir, name+".log")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s complains:\n%s", name, p.tail(15))
		}
		p.down(syscall.SIGKILL)
	})
	p.up()
	return p
}

// clear unmounts everything below dir and removes it.
func clear(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
