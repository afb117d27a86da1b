package sleep

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// TestHugePagesStay: huge pages of the machine's pool stay, and are named.
func TestHugePagesStay(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const pool = "/proc/sys/vm/nr_hugepages"
		before, err := os.ReadFile(pool)
		if err != nil {
			t.Skipf("the kernel has no huge pages: %v", err)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(before)))
		if err := os.WriteFile(pool, []byte(strconv.Itoa(n+2)), 0); err != nil {
			t.Skipf("no huge pages can be reserved: %v", err)
		}
		t.Cleanup(func() { _ = os.WriteFile(pool, before, 0) })
		b := newBed(t)
		addr := b.fighter(sleeptest.Hugetlb)
		sum := b.ask(addr, sleeptest.Sum)
		b.Must("sleep", sleeptest.Hugetlb)
		if why := b.Inspect(sleeptest.Hugetlb).GetRest().GetResident(); len(why) == 0 || why[0].GetWhy() != "huge pages (hugetlb)" || why[0].GetBytes() != 4<<20 {
			t.Errorf("the huge pages are not named: %v", why)
		}
		if got := b.ask(addr, sleeptest.Sum); got != sum {
			t.Errorf("the memory has the sum %s, want %s", got, sum)
		}
		b.Check()
	})
}

// TestAWakingContainerWithoutRoomEnds: its memory limit has become smaller than its memory while it slept. The autopsy says so.
func TestAWakingContainerWithoutRoomEnds(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		b.run("web", "--memory", "256m", "--restart", "no")
		b.Must("sleep", "web")
		b.Must("update", "--memory", "16m", "--memory-swap", "16m", "web")
		_, _ = b.CLI("wake", "web")
		roottest.Eventually(t, "the end of the container", func() bool { return b.Inspect("web").GetState() == "exited" })
		why := b.Must("why", "web")
		if !strings.Contains(why, "memory") {
			t.Errorf("why does not name its memory: %s", why)
		}
		t.Log(why)
		b.Check()
	})
}

// TestAWakingProcessDumpsCore: a signal that ends a process with a dump arrives while pages are missing. The dump does not wait for
// pages for ever, and the container ends.
func TestAWakingProcessDumpsCore(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		for _, signal := range []string{"QUIT", "ABRT", "KILL"} {
			b.run("web", "--restart", "no", "--ulimit", "core=-1", "-e", "GOTRACEBACK=crash", "-w", "/tmp")
			b.Must("sleep", "web")
			b.Must("kill", "--signal", signal, "web")
			roottest.Eventually(t, "the end of the container", func() bool { return b.Inspect("web").GetState() == "exited" })
			t.Log(signal, b.Inspect("web").GetAutopsy())
			b.Must("rm", "web")
		}
		roottest.Eventually(t, "the end of the page servers", func() bool { return len(pagesPrograms(t, "serve")) == 0 })
		b.Check()
	})
}

// TestTooManyProcessesStayAwake: the sleep of a container is refused if it has more processes than descriptors are kept for.
func TestTooManyProcessesStayAwake(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		const script = `a=$(head -c 300000 /dev/zero | tr '\0' x); i=0; while [ $i -lt 516 ]; do (read x </hold; echo $a$x >/dev/null) & i=$((i+1)); done; echo ready; wait`
		b.Must("run", "-d", "--name", "many", b.image, "sh", "-c", "mkfifo /hold; exec 9<>/hold; "+script)
		roottest.Eventually(t, "its processes", func() bool { return strings.Contains(b.Must("logs", "many"), "ready") })
		if out, err := b.CLI("sleep", "many"); err == nil || !strings.Contains(err.Error(), "more than 512 processes") {
			t.Errorf("the sleep of 517 processes: %s, %v", out, err)
		}
		if c := b.Inspect("many"); c.GetState() != "running" {
			t.Errorf("after the refusal it is %s", c.GetState())
		}
		b.Must("rm", "-f", "many")
		b.Check()
	})
}

// TestProcessesWithSharedDescriptorsSleep: two processes with one table of descriptors (CLONE_FILES) and memory of their own sleep. Both give
// their memory back, their content is right afterwards, and no descriptor of the sleep is left in the table.
func TestProcessesWithSharedDescriptorsSleep(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		addr := b.fighter(sleeptest.Files)
		sum := b.ask(addr, sleeptest.Sum)
		pid := int(b.Inspect(sleeptest.Files).GetPid())
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // any thread may have started the other one
		if err != nil {
			t.Fatal(err)
		}
		var children strings.Builder
		for _, list := range lists {
			more, err := os.ReadFile(list)
			if err != nil {
				t.Fatal(err)
			}
			children.Write(more)
		}
		other, err := strconv.Atoi(strings.TrimSpace(children.String()))
		if err != nil {
			t.Fatalf("the other process: %v", err)
		}
		if same, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), 2, 0, 0, 0); errno != 0 || same != 0 { // KCMP_FILES
			t.Fatalf("the processes do not share their descriptors: %d, %v", same, errno)
		}
		for range 3 {
			before := []uint64{b.anonymous(pid), b.anonymous(other)}
			b.Must("sleep", sleeptest.Files)
			for i, p := range []int{pid, other} {
				if left := b.anonymous(p); left > before[i]/5 || before[i] < 4<<20 {
					t.Errorf("process %d has %d bytes of %d asleep", i, left, before[i])
				}
			}
			if why := b.Inspect(sleeptest.Files).GetRest().GetResident(); len(why) > 0 {
				t.Errorf("%v stays", why)
			}
			if got := b.ask(addr, sleeptest.Sum); got != sum {
				t.Errorf("the memory has the sum %s, want %s", got, sum)
			}
			roottest.Eventually(t, "the end of the wake", func() bool { return b.Inspect(sleeptest.Files).GetRest().GetPhase() == "" })
			for _, p := range []int{pid, other} {
				links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p))
				if err != nil || len(links) == 0 {
					t.Fatalf("the descriptors of %d: %v", p, err)
				}
				for _, l := range links {
					if to, _ := os.Readlink(l); strings.Contains(to, "userfaultfd") {
						t.Errorf("%s is %s", l, to)
					}
				}
			}
		}
		b.Check()
	})
}
