package sleep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/nodetest"
)

// crowdNode bounds the memory of the node's own programs, in MiB. crowdRest is the memory of a container that a sleep leaves, and the
// kernel's for it, such as that of its network.
const (
	crowdNode = 512
	crowdRest = 768 << 10
)

// TestACrowdSleeps: a node has many more sleeping containers than its memory holds awake. Of 500 (LONGSHORE_SLEEP_CROWD; 12 by default)
// with 40 MiB each (LONGSHORE_SLEEP_MIB) it holds 40 awake; the others sleep meanwhile. Memory cgroups bound the node's programs, and
// all containers together.
func TestACrowdSleeps(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		crowd, mib := number(t, "LONGSHORE_SLEEP_CROWD", 12), number(t, "LONGSHORE_SLEEP_MIB", 40)
		awake := max(2, crowd*40/500)
		b := newBed(t)
		node := roottest.Cgroup(t)
		bounded(t, node, crowdNode<<20)
		for _, program := range []string{"longshore", "longshore-keeper", "longshore-nest"} {
			for _, pid := range nodetest.Processes(program, "") {
				join(t, node, pid)
			}
		}
		addrs, sums := make([]string, crowd), make([]string, crowd)
		var each, limit uint64
		for i := range crowd {
			name := fmt.Sprintf("sleeper%d", i)
			b.Must("run", "-d", "--name", name, "-v", os.Args[0]+":/work:ro", b.image, "/work", sleeptest.WorkArg, ":80", strconv.Itoa(mib))
			addrs[i] = b.ready(name)
			sums[i] = b.ask(addrs[i], sleeptest.Sum)
			each = max(each, b.anonymous(int(b.Inspect(name).GetPid())))
			if i == 0 {
				limit = each*uint64(awake)*11/10 + uint64(crowd)*crowdRest
				bounded(t, b.Cgroup, limit)
			}
			if _, err := b.CLI("sleep", name); err != nil {
				log, _ := b.CLI("logs", name)
				t.Fatalf("%v; %v; its log: %s", err, b.Inspect(name), log)
			}
			if i%50 == 49 {
				t.Logf("%d containers sleep; the memory of all is %d MiB", i+1, used(t, b.Cgroup)>>20)
			}
		}
		asleep := used(t, b.Cgroup)
		t.Logf("%d containers with %d MiB each sleep in %d MiB; the limit is %d MiB and %d MiB for the node's programs", crowd, each>>20, asleep>>20, limit>>20, crowdNode)
		if each*uint64(crowd) < 3*limit || each*uint64(awake) > limit {
			t.Errorf("the limit of %d MiB has room for %d of them", limit>>20, limit/each)
		}
		b.sleepAll(crowd)
		for i := range awake {
			if got := b.ask(addrs[i*crowd/awake], sleeptest.Sum); got != sums[i*crowd/awake] {
				t.Errorf("container %d has the sum %s, want %s", i*crowd/awake, got, sums[i*crowd/awake])
			}
		}
		for i := range awake {
			name := fmt.Sprintf("sleeper%d", i*crowd/awake)
			roottest.Eventually(t, "the end of the wake of "+name, func() bool { return b.Inspect(name).GetRest().GetPhase() == "" })
		}
		states := b.states()
		t.Logf("with %d of them awake: %v, %d MiB", awake, states, used(t, b.Cgroup)>>20)
		if states["running"] != awake || states["asleep"] != crowd-awake {
			t.Errorf("the containers are %v", states)
		}
		b.Check()
	})
}

// sleepAll asserts that all containers sleep, and names the others.
func (b *bed) sleepAll(crowd int) {
	b.T.Helper()
	states := b.states()
	if states["asleep"] == crowd {
		return
	}
	b.T.Errorf("before any of them wakes they are %v", states)
	for i := range crowd {
		if c := b.Inspect(fmt.Sprintf("sleeper%d", i)); c.GetState() != "asleep" {
			b.T.Logf("%s is %s; woken %s; %v", c.GetName(), c.GetState(), c.GetRest().GetBy(), c.GetAutopsy())
		}
	}
}

// number returns the number in a variable of the environment.
func number(t *testing.T, variable string, otherwise int) (n int) {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return otherwise
	}
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// states counts the containers by their states.
func (b *bed) states() map[string]int {
	b.T.Helper()
	resp, err := b.API.ListContainers(b.T.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		b.T.Fatal(err)
	}
	states := map[string]int{}
	for _, c := range resp.GetContainers() {
		states[c.GetState()]++
	}
	return states
}

// memoryDir returns the directory of a memory cgroup.
func memoryDir(path string) (dir string, v2 bool) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return filepath.Join("/sys/fs/cgroup", path), true
	}
	return filepath.Join("/sys/fs/cgroup/memory", path), false
}

// bounded bounds the memory of a cgroup, which it makes if necessary.
func bounded(t *testing.T, path string, limit uint64) {
	t.Helper()
	dir, v2 := memoryDir(path)
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatUint(limit, 10)), 0)); err != nil {
		t.Fatal(err)
	}
}

// join moves a process into a memory cgroup.
func join(t *testing.T, path string, pid int) {
	t.Helper()
	dir, _ := memoryDir(path)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// used returns how much memory a cgroup has, without the cache of files.
func used(t *testing.T, path string) (n uint64) {
	t.Helper()
	dir, v2 := memoryDir(path)
	key := "total_rss"
	if v2 {
		key = "anon"
	}
	b, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			_, _ = fmt.Sscan(f[1], &n)
		}
	}
	return n
}
