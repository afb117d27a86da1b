package sleep

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
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
	*nodetest.Bed
	image string
}

func newBed(t *testing.T) *bed { return newBedWith(t, "") }

func newBedWith(t *testing.T, config string) *bed {
	t.Helper()
	b := nodetest.NewBed(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n" + config})
	return &bed{Bed: b, image: b.Busybox(t)}
}

// run starts a container with the test's program, and returns the address of its server.
func (b *bed) run(name string, args ...string) string {
	b.T.Helper()
	all := append([]string{"run", "-d", "--name", name, "-v", os.Args[0] + ":/work:ro"}, args...)
	b.Must(append(all, b.image, "/work", sleeptest.WorkArg, ":80", "32")...)
	return b.ready(name)
}

// fighter runs a container that disturbs its sleep, and returns the address of its server.
func (b *bed) fighter(mode string, args ...string) string {
	b.T.Helper()
	all := append([]string{"run", "-d", "--name", mode, "-v", os.Args[0] + ":/work:ro", "--security-opt", "seccomp=unconfined"}, args...)
	b.Must(append(all, b.image, "/work", sleeptest.WorkArg, ":80", "16", mode)...)
	return b.ready(mode)
}

// ready waits for the server of a container and returns its address.
func (b *bed) ready(name string) string {
	b.T.Helper()
	c := b.Inspect(name)
	if len(c.GetAddresses()) == 0 {
		b.T.Fatalf("%s has no address: %v", name, c)
	}
	addr := c.GetAddresses()[0] + ":80"
	roottest.Eventually(b.T, "an answer of "+name, func() bool {
		_, err := sleeptest.Ask(b.T.Context(), addr, sleeptest.Touch)
		return err == nil
	})
	return addr
}

// ask makes a request of the program.
func (b *bed) ask(addr, request string) string {
	b.T.Helper()
	answer, err := sleeptest.Ask(b.T.Context(), addr, request)
	if err != nil {
		log, _ := b.CLI("logs", "--tail", "20", "web")
		b.T.Fatalf("%v; %v; %v; the log of web: %s", err, b.states(), b.Find("web"), log)
	}
	return answer
}

// anonymous returns the private anonymous memory of a process in bytes.
func (b *bed) anonymous(pid int) (n uint64) {
	b.T.Helper()
	s, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.T.Fatal(err)
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
		pid := int(b.Inspect("web").GetPid())
		awake := b.anonymous(pid)
		for _, wake := range [][]string{{"wake", "web"}, {"exec", "web", "true"}, {"kill", "--signal", "URG", "web"}} {
			b.Must("sleep", "web")
			c := b.Inspect("web")
			if asleep := b.anonymous(pid); c.GetState() != "asleep" || asleep*5 > awake {
				t.Errorf("asleep it has %d of %d bytes: %v", asleep, awake, c)
			}
			b.Must(wake...)
			if c := b.Inspect("web"); c.GetState() != "running" || int(c.GetPid()) != pid {
				t.Errorf("after %v: %v", wake, c)
			}
			if got := b.ask(addr, sleeptest.Sum); got != sum {
				t.Errorf("after %v the memory has the sum %s, want %s", wake, got, sum)
			}
			roottest.Eventually(t, "the end of the wake", func() bool { return b.Inspect("web").GetRest().GetPhase() == "" })
		}
		// A request wakes it, and waits for nothing else.
		b.Must("sleep", "web")
		if got := b.ask(addr, sleeptest.Sum); got != sum {
			t.Errorf("woken by a request, the memory has the sum %s, want %s", got, sum)
		}
		if c := b.Inspect("web"); c.GetState() != "running" || c.GetRest().GetBy() != "for a packet" {
			t.Errorf("woken by a request: %v", c)
		}
		b.back("a request")
		b.Check()
		b.Must("sleep", "web")
		b.Must("stop", "-t", "20", "web")
		if c := b.Inspect("web"); c.GetState() != "exited" || c.GetAutopsy().GetStatus() != 2 && c.GetAutopsy().GetStatus() != 143 {
			t.Errorf("stopped in its sleep: %v", c)
		}
		b.Must("rm", "web")
		b.run("killed")
		b.Must("sleep", "killed")
		b.Must("kill", "killed")
		b.Must("wait", "killed")
		b.run("removed", "--userns", "auto")
		b.Must("sleep", "removed")
		b.Must("rm", "-f", "removed", "killed")
		b.Check()
		if entries, _ := os.ReadDir(b.Root + "/sleep"); len(entries) > 0 {
			t.Errorf("files are left: %v", entries)
		}
	})
}

// TestIdleContainersSleep: a container with a time sleeps when it is idle, and not before. All faces can set the time.
func TestIdleContainersSleep(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		b.Must("run", "-d", "--name", "idle", "--sleep-after", "1s", b.image, "sleep", "1000")
		b.Must("run", "-d", "--name", "labelled", "--label", "longshore.sleep-after=1s", b.image, "sleep", "1000")
		b.Must("run", "-d", "--name", "busy", "--sleep-after", "1s", b.image, "sh", "-c", "while :; do :; done")
		cfg := b.PodConfig("pod")
		cfg.Annotations = map[string]string{"longshore.io/sleep-after": "1s"}
		pod := b.RunPod(t, cfg)
		c := pod.Run(t, nodetest.ContainerConfig("c", b.image, "sleep", "1000"))
		for _, name := range []string{"idle", "labelled"} {
			roottest.Eventually(t, name+" sleeps", func() bool { return b.Inspect(name).GetState() == "asleep" })
		}
		b.FallsAsleep("cri")
		if c := b.Inspect("busy"); c.GetState() != "running" {
			t.Errorf("it is busy: %v", c)
		}
		if s := c.Status(t); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("to CRI a sleeping container is %v", s.GetState())
		}
		if out, err := b.CLI("run", "--sleep-after", "1ms", b.image, "true"); err == nil || !strings.Contains(err.Error(), "at least 1s") {
			t.Errorf("an impossible time: %q, %v", out, err)
		}
	})
}

// TestFighters puts containers to sleep that disturb it. They sleep with the memory that can be freed, or run on with an error that
// says why. Their memory stays right in any case.
func TestFighters(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		for mode, want := range map[string]struct{ stays, refused string }{
			sleeptest.OwnFaults: {stays: "the program's own userfaultfd"},
			sleeptest.Locks:     {stays: "locked memory"},
			sleeptest.Traces:    {refused: "traces it"},
			sleeptest.Signals:   {},
			sleeptest.Forks:     {},
			sleeptest.Huge:      {},
			sleeptest.Shared:    {stays: "shared memory"},
			sleeptest.Rings:     {stays: "io_uring"},
		} {
			addr := b.fighter(mode)
			sum := b.ask(addr, sleeptest.Sum)
			for range 2 {
				_, err := b.CLI("sleep", mode)
				if want.refused != "" {
					if err == nil || !strings.Contains(err.Error(), want.refused) {
						t.Errorf("%s: %v, want %q", mode, err, want.refused)
					}
				} else if err != nil {
					t.Errorf("%s: %v", mode, err)
				}
				if want.stays != "" {
					if why := b.Inspect(mode).GetRest().GetResident(); !slices.ContainsFunc(why, func(r *longshorev1.Resident) bool { return r.GetWhy() == want.stays }) {
						t.Errorf("%s: %v stays, want %q", mode, why, want.stays)
					}
				}
				if got := b.ask(addr, sleeptest.Sum); got != sum {
					t.Errorf("%s: the memory has the sum %s, want %s", mode, got, sum)
				}
				roottest.Eventually(t, "the end of the wake of "+mode, func() bool { return b.Inspect(mode).GetRest().GetPhase() == "" })
			}
			b.Must("rm", "-f", mode)
		}
		b.Check()
	})
}

// A container runs on when the disk is full or its file would be too large.
func TestASleepOnAFullDisk(t *testing.T) {
	refused(t, "[sleep]\nmin_free_bytes = 4611686018427387904\n", "free space")
}

func TestASleepBeyondTheLimit(t *testing.T) {
	refused(t, "[sleep]\nmax_bytes = 1048576\n", "larger than the limit")
}

// refused asserts that a container cannot sleep with a configuration.
func refused(t *testing.T, config, want string) {
	t.Helper()
	roottest.Run(t, func(t *testing.T) {
		b := newBedWith(t, config)
		addr := b.run("web")
		sum := b.ask(addr, sleeptest.Sum)
		if out, err := b.CLI("sleep", "web"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
		if c := b.Inspect("web"); c.GetState() != "running" {
			t.Errorf("after the refusal: %v", c)
		}
		if got := b.ask(addr, sleeptest.Sum); got != sum {
			t.Errorf("the memory has the sum %s, want %s", got, sum)
		}
		if entries, _ := os.ReadDir(b.Root + "/sleep"); len(entries) > 0 {
			t.Errorf("files are left: %v", entries)
		}
		b.Check()
	})
}

// TestASleepWithoutAnyKeeper kills agent, keeper and nest together: the descriptors of the sleeping memory are lost, and the
// container ends before it can read an empty page.
func TestASleepWithoutAnyKeeper(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		b.run("web")
		b.Must("sleep", "web")
		pid := int(b.Inspect("web").GetPid())
		b.Kill()
		b.KillPair()
		b.Up()
		if c := b.Inspect("web"); c.GetState() != "exited" {
			t.Errorf("its memory is lost: %v", c)
		}
		if state := nodetest.Incarnation(pid); state != "" {
			t.Errorf("its process still exists: %s", state)
		}
		t.Log(b.Inspect("web").GetAutopsy())
		b.Check()
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
			b.Must("sleep", "web")
			kill()
			if name == "both" { // its first packet arrived while there was no agent
				if got := b.ask(addr, sleeptest.Sum); got != sum {
					t.Errorf("%s: after a packet the memory has the sum %s, want %s", name, got, sum)
				}
				b.back(name)
				b.Must("sleep", "web")
			}
			if c := b.Inspect("web"); c.GetState() != "asleep" {
				t.Errorf("%s: %v", name, c)
			}
			b.Must("wake", "web")
			kill()
			if got := b.ask(addr, sleeptest.Sum); got != sum {
				t.Errorf("%s: after a sleep the memory has the sum %s, want %s", name, got, sum)
			}
			roottest.Eventually(t, "the end of the wake", func() bool { return b.Inspect("web").GetRest().GetPhase() == "" })
			b.Check()
		}
	})
}

// TestAPageServerOutlivesItsAgent: it restores all pages while there is no agent. The next agent ends it, and the container can sleep
// again.
func TestAPageServerOutlivesItsAgent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		addr := b.run("web")
		sum := b.ask(addr, sleeptest.Sum)
		pid := int(b.Inspect("web").GetPid())
		awake := b.anonymous(pid)
		for range 2 {
			b.Must("sleep", "web")
			if asleep := b.anonymous(pid); asleep*5 > awake {
				t.Errorf("asleep it has %d of %d bytes", asleep, awake)
			}
			b.Must("wake", "web")
			b.Kill()
			if got, err := sleeptest.Ask(t.Context(), addr, sleeptest.Sum); err != nil || got != sum {
				t.Errorf("without an agent the memory has the sum %s, %v, want %s", got, err, sum)
			}
			b.Up()
			b.back("the next agent")
			if left := pagesPrograms(t, "serve"); len(left) > 0 {
				t.Errorf("page servers are left: %v", left)
			}
		}
		b.Check()
	})
}

// TestASleepIsKilledAnywhere kills the parts of a node at a random moment while a container falls asleep or wakes. Then the
// container sleeps or runs, and its memory is right. LONGSHORE_SLEEP_KILLS is the number of kills.
func TestASleepIsKilledAnywhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		rounds := 16
		if s := os.Getenv("LONGSHORE_SLEEP_KILLS"); s != "" {
			if _, err := fmt.Sscan(s, &rounds); err != nil {
				t.Fatal(err)
			}
		}
		b := newBed(t)
		addr := b.run("web", "--restart", "no")
		sum := b.ask(addr, sleeptest.Sum)
		pid := b.Inspect("web").GetPid()
		random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
		seen := map[string]int{}
		for i := range rounds {
			victim := []string{"agent", "keeper", "agent and keeper", "pages"}[i%4]
			for _, verb := range []string{"sleep", "wake"} {
				b.killed(random, victim, verb)
				c := b.Inspect("web")
				seen[victim+", "+verb+": "+c.GetState()]++
				if c.GetState() == "exited" && victim == "pages" && verb == "sleep" {
					// The kernel has killed it with the program that traced it.
					b.Must("rm", "web")
					addr = b.run("web")
					sum, pid = b.ask(addr, sleeptest.Sum), b.Inspect("web").GetPid()
					continue
				}
				if c.GetPid() != pid || c.GetState() != "asleep" && c.GetState() != "running" {
					t.Fatalf("round %d, %s, %s: %v", i, victim, verb, c)
				}
				if verb == "wake" {
					b.Must("wake", "web")
					if got := b.ask(addr, []string{sleeptest.Sum, sleeptest.Fork, sleeptest.Move}[i/4%3]); got != sum {
						t.Fatalf("round %d, %s, %s: the memory has the sum %s, want %s", i, victim, verb, got, sum)
					}
					sum = b.ask(addr, sleeptest.Dirty)
					b.back(fmt.Sprintf("round %d, %s", i, victim))
				}
			}
		}
		t.Log(seen)
		if left := append(pagesPrograms(t, "serve"), pagesPrograms(t, "sleep")...); len(left) > 0 {
			t.Errorf("programs are left: %v", left)
		}
		b.Check()
	})
}

// back waits until all pages are restored.
func (b *bed) back(when string) {
	b.T.Helper()
	defer func() {
		if !b.T.Failed() {
			return
		}
		for _, pid := range pagesPrograms(b.T, "serve") { // its log has the places of its goroutines then
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			_, _ = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		}
		files, _ := filepath.Glob(b.State + "/sleep/*/log")
		for _, path := range files {
			log, err := os.ReadFile(path)
			b.T.Logf("%s: %v, the server's log: %s, %v", when, b.Inspect("web"), log, err)
		}
	}()
	roottest.Eventually(b.T, "the end of the wake", func() bool { return b.Inspect("web").GetRest().GetPhase() == "" })
}

// killed kills the victim at a random moment of a verb, and brings it back.
func (b *bed) killed(random *rand.Rand, victim, verb string) {
	b.T.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = b.CLI(verb, "web") // it may fail
	}()
	moment := time.NewTimer(time.Duration(random.IntN(1200)) * time.Millisecond)
	select {
	case <-done:
	case <-moment.C:
	}
	if strings.Contains(victim, "keeper") {
		b.KillKeeper()
	}
	if strings.Contains(victim, "agent") {
		b.Kill()
	}
	if victim == "pages" {
		for _, role := range []string{"sleep", "serve"} {
			for _, pid := range pagesPrograms(b.T, role) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	<-done
	if strings.Contains(victim, "agent") {
		b.Up()
	}
	if strings.Contains(victim, "keeper") {
		b.KeeperBack()
	}
}

// pagesPrograms returns the processes of longshore-pages in a role.
func pagesPrograms(t *testing.T, role string) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		b, _ := os.ReadFile(path)
		if args := strings.Split(string(b), "\x00"); len(args) > 2 && strings.HasSuffix(args[0], "longshore-pages") && args[1] == role {
			var pid int
			_, _ = fmt.Sscanf(path, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}
