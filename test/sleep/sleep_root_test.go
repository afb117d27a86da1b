package sleep

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestMain lets the test binary be the program that sleeps.
func TestMain(m *testing.M) {
	if sleeptest.Main(os.Args) {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bed is a node with containers that sleep.
type bed struct {
	*nodetest.Node
	t     *testing.T
	image string
	api   longshorev1.ContainersClient
}

func newBed(t *testing.T) *bed {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"})
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &bed{Node: n, t: t, image: n.Busybox(t), api: longshorev1.NewContainersClient(conn)}
}

// run starts a container with the test's program, and returns the address of its server.
func (b *bed) run(name string, args ...string) string {
	b.t.Helper()
	all := append([]string{"run", "-d", "--name", name, "-v", os.Args[0] + ":/work:ro"}, args...)
	b.cli(append(all, b.image, "/work", sleeptest.WorkArg, ":80", "32")...)
	c := b.inspect(name)
	if len(c.GetAddresses()) == 0 {
		b.t.Fatalf("%s has no address: %v", name, c)
	}
	addr := c.GetAddresses()[0] + ":80"
	roottest.Eventually(b.t, "an answer of "+name, func() bool {
		_, err := sleeptest.Ask(b.t.Context(), addr, sleeptest.Touch)
		return err == nil
	})
	return addr
}

func (b *bed) cli(args ...string) string {
	b.t.Helper()
	out, err := b.CLI(args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *bed) inspect(name string) *longshorev1.Container {
	b.t.Helper()
	resp, err := b.api.ListContainers(b.t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range resp.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	b.t.Fatalf("no container %s", name)
	return nil
}

// ask makes a request of the program.
func (b *bed) ask(addr, request string) string {
	b.t.Helper()
	answer, err := sleeptest.Ask(b.t.Context(), addr, request)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

// anonymous returns the private anonymous memory of a process in bytes.
func (b *bed) anonymous(pid int) (n uint64) {
	b.t.Helper()
	s, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(s)) {
		if v, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			_, _ = fmt.Sscan(v, &n)
		}
	}
	return n << 10
}

// TestContainersSleepAndWake puts containers to sleep and wakes them in every way.
func TestContainersSleepAndWake(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		addr := b.run("web")
		sum := b.ask(addr, sleeptest.Sum)
		pid := int(b.inspect("web").GetPid())
		awake := b.anonymous(pid)
		for _, wake := range [][]string{{"wake", "web"}, {"exec", "web", "true"}, {"kill", "--signal", "URG", "web"}} {
			b.cli("sleep", "web")
			c := b.inspect("web")
			if asleep := b.anonymous(pid); c.GetState() != "asleep" || asleep*5 > awake {
				t.Errorf("asleep it has %d of %d bytes: %v", asleep, awake, c)
			}
			b.cli(wake...)
			if c := b.inspect("web"); c.GetState() != "running" || int(c.GetPid()) != pid {
				t.Errorf("after %v: %v", wake, c)
			}
			if got := b.ask(addr, sleeptest.Sum); got != sum {
				t.Errorf("after %v the memory has the sum %s, want %s", wake, got, sum)
			}
			roottest.Eventually(t, "the end of the wake", func() bool { return b.inspect("web").GetRest().GetPhase() == "" })
		}
		b.Check()
		b.cli("sleep", "web")
		b.cli("stop", "-t", "20", "web")
		if c := b.inspect("web"); c.GetState() != "exited" || c.GetAutopsy().GetStatus() != 2 && c.GetAutopsy().GetStatus() != 143 {
			t.Errorf("stopped in its sleep: %v", c)
		}
		b.cli("rm", "web")
		b.run("killed")
		b.cli("sleep", "killed")
		b.cli("kill", "killed")
		b.cli("wait", "killed")
		b.run("removed", "--userns", "auto")
		b.cli("sleep", "removed")
		b.cli("rm", "-f", "removed", "killed")
		b.Check()
		if entries, _ := os.ReadDir(b.Root + "/sleep"); len(entries) > 0 {
			t.Errorf("files are left: %v", entries)
		}
	})
}

// TestASleepOutlivesTheAgent kills agent, keeper and page server while a container sleeps and wakes.
func TestASleepOutlivesTheAgent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		addr := b.run("web")
		sum := b.ask(addr, sleeptest.Sum)
		for name, kill := range map[string]func(){
			"agent":  func() { b.Kill(); b.Up() },
			"keeper": func() { b.KillKeeper(); b.KeeperBack() },
			"both":   func() { b.KillKeeper(); b.Kill(); b.Up() },
		} {
			b.cli("sleep", "web")
			kill()
			if c := b.inspect("web"); c.GetState() != "asleep" {
				t.Errorf("%s: %v", name, c)
			}
			b.cli("wake", "web")
			kill()
			if got := b.ask(addr, sleeptest.Sum); got != sum {
				t.Errorf("%s: after a sleep the memory has the sum %s, want %s", name, got, sum)
			}
			roottest.Eventually(t, "the end of the wake", func() bool { return b.inspect("web").GetRest().GetPhase() == "" })
			b.Check()
		}
	})
}
