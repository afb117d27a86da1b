package endings

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// ending is how a container is to have ended.
type ending struct {
	code, signal  int
	start         int  // exit status of a program that could not be started
	lost          bool // nobody knows
	oom, childOOM bool // the main process, or another one, was killed for memory
}

func (e ending) status() int {
	switch {
	case e.start != 0:
		return e.start
	case e.lost:
		return 255
	case e.signal != 0:
		return 128 + e.signal
	default:
		return e.code
	}
}

// death is one way to die.
type death struct {
	name       string
	script     string
	command    []string // instead of script
	memory     int64
	pids       int
	stopSignal string
	high       int64 // memory.high, which cgroup v2 has
	init       bool  // a tiny init is pid 1
	shared     bool  // it is not the first process of its pid namespace, which its pod has
	caps       []string
	flags      []string // of longshore run: other faces cannot
	// does acts on it once it has said "up"; false where the face cannot.
	does act
	end  ending
	why  string // a regular expression of the whole verdict
	last string // the command why's text beside the verdict
	gone bool   // it has no record after that, but for a container of the command line
}

// container is one as the command line shows it, of any owner.
type container struct {
	ID, Key, Owner, State string
	Pid                   int
	Autopsy               *struct {
		Status, Code, Signal int
		Lost                 bool
		Verdict              string
	}
}

func find(t *testing.T, n *nodetest.Node, owner string) *container {
	t.Helper()
	out, err := n.CLI("ps", "-a", "--json", "--owner", owner)
	if err != nil {
		t.Fatal(err)
	}
	var list []*container
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(list) != 1 {
		return nil
	}
	return list[0]
}

// act acts on a container; false where the face has no such call.
type act func(t *testing.T, n *nodetest.Node, f face, x *container) bool

func stopped(sig syscall.Signal, grace time.Duration) act {
	return func(t *testing.T, _ *nodetest.Node, f face, _ *container) bool {
		t.Helper()
		f.stop(t, sig, grace)
		return true
	}
}

func signalled(sig syscall.Signal) act {
	return func(t *testing.T, _ *nodetest.Node, f face, _ *container) bool {
		t.Helper()
		return f.signal(t, sig)
	}
}

// deafWithinGrace leaves it time to end. Mesos' clients ask for each signal.
func deafWithinGrace(t *testing.T, _ *nodetest.Node, f face, _ *container) bool {
	t.Helper()
	if _, ok := f.(*mesosFace); ok {
		return false
	}
	f.stop(t, syscall.SIGTERM, time.Second)
	return true
}

func signalledAndStopped(t *testing.T, _ *nodetest.Node, f face, _ *container) bool {
	t.Helper()
	f.signal(t, syscall.SIGHUP)
	f.stop(t, syscall.SIGTERM, time.Minute)
	return true
}

func kill(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

func killedFromOutside(t *testing.T, _ *nodetest.Node, _ face, x *container) bool {
	t.Helper()
	kill(t, x.Pid)
	return true
}

func cli(t *testing.T, n *nodetest.Node, args ...string) {
	t.Helper()
	if _, err := n.CLI(args...); err != nil {
		t.Error(err)
	}
}

func execOutOfMemory(t *testing.T, n *nodetest.Node, f face, x *container) bool {
	t.Helper()
	_, err := n.CLI("exec", "--force", x.ID, "/bin/tail", "/dev/zero")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 137 {
		t.Errorf("the exec: %v", err)
	}
	if out, err := n.CLI("why", x.ID); err != nil || !strings.Contains(out, "has not ended") {
		t.Errorf("why: %s, %v", out, err)
	}
	f.stop(t, syscall.SIGTERM, time.Minute)
	return true
}

// above lets the program write more than its memory.high, which the face sets or, where it knows
// none, an operator.
func above(high int64) act {
	return func(t *testing.T, n *nodetest.Node, f face, x *container) bool {
		t.Helper()
		if _, ok := f.(*criFace); !ok {
			limit(t, cgroupOf(t, x), "memory.high", fmt.Sprint(high))
		}
		goOn(t, n, x)
		return true
	}
}

// cgroupOf is a container's, below the root of the hierarchy that limits memory.
func cgroupOf(t *testing.T, x *container) string {
	t.Helper()
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", x.Pid))
	if err != nil {
		t.Fatal(err)
	}
	own := ""
	for line := range strings.Lines(string(lines)) {
		if _, path, ok := strings.Cut(line, ":memory:"); ok || own == "" && strings.HasPrefix(line, "0::") {
			own = strings.TrimSpace(strings.TrimPrefix(line, "0::"))
			if ok {
				own = strings.TrimSpace(path)
			}
		}
	}
	return own
}

// limit writes a file of a cgroup: memory.max, or its like on v1.
func limit(t *testing.T, cgroup, file, to string) {
	t.Helper()
	path := filepath.Join("/sys/fs/cgroup", cgroup, file)
	if v1 := filepath.Join("/sys/fs/cgroup/memory", cgroup); file == "memory.max" {
		if _, err := os.Stat(v1); err == nil {
			path = filepath.Join(v1, "memory.limit_in_bytes")
			to = strings.Replace(to, "max", "-1", 1)
		}
	}
	if err := os.WriteFile(path, []byte(to), 0); err != nil {
		t.Error(err)
	}
}

// goOn wakes a program that waits for it.
func goOn(t *testing.T, n *nodetest.Node, x *container) {
	t.Helper()
	cli(t, n, "exec", "--force", x.ID, "/bin/touch", "/tmp/go")
}

// outOfMemoryAt limits a cgroup above the container while that runs out of memory.
func outOfMemoryAt(above func(t *testing.T, n *nodetest.Node, x *container) string) act {
	return func(t *testing.T, n *nodetest.Node, _ face, x *container) bool {
		t.Helper()
		cgroup := above(t, n, x)
		limit(t, cgroup, "memory.max", "32M")
		goOn(t, n, x)
		nodetest.Eventually(t, "it is killed", func() bool { return syscall.Kill(x.Pid, 0) != nil })
		return true
	}
}

func ofSandbox(t *testing.T, _ *nodetest.Node, x *container) string {
	t.Helper()
	return filepath.Dir(cgroupOf(t, x))
}

// ofNode is the cgroup of all of the agent's containers, which others are to have again.
func ofNode(t *testing.T, n *nodetest.Node, _ *container) string {
	t.Helper()
	t.Cleanup(func() { limit(t, n.Cgroup, "memory.max", "max") })
	return n.Cgroup
}

func frozenAndStopped(t *testing.T, n *nodetest.Node, f face, x *container) bool {
	t.Helper()
	cli(t, n, "pause", "--force", x.ID)
	f.stop(t, syscall.SIGTERM, 0)
	return true
}

func frozenAndKilled(t *testing.T, n *nodetest.Node, f face, x *container) bool {
	t.Helper()
	cli(t, n, "pause", "--force", x.ID)
	if f.signal(t, syscall.SIGKILL) {
		return true
	}
	cli(t, n, "resume", "--force", x.ID)
	return false
}

func itself(*testing.T, *nodetest.Node, face, *container) bool { return true }

func sandboxEnded(t *testing.T, n *nodetest.Node, f face, _ *container) bool {
	t.Helper()
	c, ok := f.(*criFace)
	if !ok {
		return false
	}
	if _, err := n.CRI.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: c.pod.ID}); err != nil {
		t.Error(err)
	}
	return true
}

func keeperKilled(t *testing.T, n *nodetest.Node, _ face, x *container) bool {
	t.Helper()
	n.KillKeeper()
	kill(t, x.Pid)
	return true
}

// pairKilled kills keeper and nest while the agent lives, and then the container: only a kernel
// since 6.15 tells its end.
func pairKilled(t *testing.T, n *nodetest.Node, _ face, x *container) bool {
	t.Helper()
	if !nodetest.KernelTellsEnds() {
		return false
	}
	nodetest.Eventually(t, "the agent has a copy of what the keeper holds", func() bool { return nodetest.HasPidfd(n.Pid(), x.Pid) })
	n.KillPair()
	kill(t, x.Pid)
	return true
}

// allKilled kills agent, keeper and nest, and leaves the container running.
func allKilled(t *testing.T, n *nodetest.Node, _ face, _ *container) bool {
	t.Helper()
	n.Kill()
	n.KillPair()
	n.Up()
	return true
}

// whileAway kills the agent, the keeper if set, or keeper and nest if set, and then the
// container.
func whileAway(keeper, nest bool) act {
	return func(t *testing.T, n *nodetest.Node, _ face, x *container) bool {
		t.Helper()
		n.Kill()
		switch {
		case nest:
			n.KillPair()
		case keeper:
			n.KillKeeper()
		}
		kill(t, x.Pid)
		n.Up()
		return true
	}
}

func powerCut(_ *testing.T, n *nodetest.Node, _ face, _ *container) bool {
	n.PowerCut()
	n.Up()
	return true
}

// forever is a script that waits for its end.
const forever = "; echo up; while :; do sleep 0.05; done"

// untilGo waits for the test.
const untilGo = "echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; "

// The deaths. In the words of why, STOP and SIGNAL stand for the face's, LIMIT for its memory limit.
var deaths = []death{
	{name: "completed", script: "exit 0", why: "completed: exit code 0"},
	{name: "code", script: "exit 3", end: ending{code: 3}, why: "exited with code 3"},
	{
		name: "crash", script: "ulimit -c 0; ulimit -s 8192; f() { f; }; f", end: ending{signal: 11},
		why: "crashed: killed by SIGSEGV, it used memory that it does not have(, with a core dump)?", // a pipe takes cores of any size
	},
	{name: "signal-below-init", script: "kill -TERM $$", init: true, end: ending{code: 143}, why: `exited with code 143 \(128 \+ SIGTERM\)`},
	{name: "signal-from-inside", script: "kill -TERM $$", shared: true, end: ending{signal: 15}, why: "killed by SIGTERM, which nobody here has sent"},
	{name: "killed-from-outside", script: ":" + forever, does: killedFromOutside, end: ending{signal: 9}, why: "killed by SIGKILL, which nobody here has sent"},
	{name: "our-signal", script: "trap 'exit 9' TERM" + forever, does: signalled(syscall.SIGTERM), end: ending{code: 9}, why: "exited with code 9 after SIGTERM, asked for by SIGNAL"},
	{name: "signal-of-ours-that-asks-nothing", script: "trap 'exit 9' USR1" + forever, does: signalled(syscall.SIGUSR1), end: ending{code: 9}, why: "exited with code 9"},
	{name: "our-kill", script: ":" + forever, does: signalled(syscall.SIGKILL), end: ending{signal: 9}, why: "ended by SIGKILL, asked for by SIGNAL"},
	{name: "stopped", script: "trap 'exit 0' TERM" + forever, does: stopped(syscall.SIGTERM, time.Minute), why: "exited with code 0 after SIGTERM, asked for by STOP"},
	{
		name: "deaf-within-grace", script: "trap '' TERM" + forever, does: deafWithinGrace, end: ending{signal: 9},
		why: "killed by SIGKILL: it did not end by SIGTERM within its grace; asked for by STOP",
	},
	{name: "deaf", script: "trap '' TERM" + forever, does: stopped(syscall.SIGTERM, 0), end: ending{signal: 9}, why: "ended by SIGKILL, asked for by STOP"},
	{
		name: "custom-signal", script: "trap 'exit 7' USR1" + forever, stopSignal: "SIGUSR1", does: stopped(syscall.SIGUSR1, time.Minute),
		end: ending{code: 7}, why: "exited with code 7 after SIGUSR1, asked for by STOP",
	},
	{
		name: "real-time-signal", script: "trap 'exit 6' 37" + forever, stopSignal: "SIGRTMIN+3", does: stopped(37, time.Minute),
		end: ending{code: 6}, why: "exited with code 6 after signal 37, asked for by STOP",
	},
	{name: "signal-then-stop", script: "trap : HUP; trap 'exit 0' TERM" + forever, does: signalledAndStopped, why: "exited with code 0 after SIGTERM, asked for by STOP"},
	{
		name: "out-of-memory", command: []string{"/bin/tail", "/dev/zero"}, memory: 16 << 20, end: ending{signal: 9, oom: true},
		why: "killed by the kernel: out of memory at the limit of LIMIT",
	},
	{
		name: "child-out-of-memory", script: "tail /dev/zero; exit 5", memory: 16 << 20, end: ending{code: 5, childOOM: true},
		why: "exited with code 5; before that the kernel killed a process of it, out of memory at the limit of LIMIT",
	},
	{
		name: "out-of-memory-below-init", script: "exec tail /dev/zero", init: true, memory: 16 << 20, end: ending{code: 137, oom: true},
		why: "killed by the kernel: out of memory at the limit of LIMIT",
	},
	{
		name: "exec-out-of-memory", script: "trap 'exit 0' TERM" + forever, memory: 16 << 20, does: execOutOfMemory, end: ending{childOOM: true},
		why: "exited with code 0 after SIGTERM, asked for by STOP; before that the kernel killed a process of it, out of memory at the limit of LIMIT",
	},
	{
		name: "sandbox-out-of-memory", script: untilGo + "exec tail /dev/zero", does: outOfMemoryAt(ofSandbox),
		end: ending{signal: 9, oom: true}, why: `killed by the kernel: out of memory at the limit of the sandbox \(32 MiB\)`,
	},
	{
		name: "node-out-of-memory", script: untilGo + "exec tail /dev/zero", does: outOfMemoryAt(ofNode),
		// The kernel logs ten kills in five seconds.
		end: ending{signal: 9, oom: true}, why: "killed by the kernel: out of memory at (the limit of /longshore[^ ]*|a limit above it or that of the whole host: the kernel's log does not tell)",
	},
	{
		name: "processes", script: "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; exit 4", pids: 5, end: ending{code: 2},
		why: "exited with code 2; the kernel had refused it a process or thread at its limit of pids",
	},
	{
		name: "above-high", script: untilGo + "dd if=/dev/zero of=/tmp/much bs=1M count=32; exit 7", high: 8 << 20, does: above(8 << 20),
		end: ending{code: 7}, why: "exited with code 7; it was slowed down at its memory.high",
	},
	{name: "no-space", script: "echo x >/dev/full || exit 28", end: ending{code: 28}, why: "exited with code 28", last: "No space left on device"},
	{name: "reboot", command: []string{"/bin/busybox", "reboot", "-f"}, caps: []string{"SYS_BOOT"}, end: ending{signal: 1}, why: "restarted by itself: a program in it has called reboot"},
	{
		name: "reboot-below-init", script: "/bin/busybox reboot -f; sleep 1000", init: true, caps: []string{"SYS_BOOT"}, end: ending{signal: 1},
		why: "restarted by itself: a program in it has called reboot",
	},
	{
		name: "power-off", command: []string{"/bin/busybox", "poweroff", "-f"}, caps: []string{"SYS_BOOT"}, end: ending{signal: 2},
		why: "switched off by itself: a program in it has called reboot to power off or halt",
	},
	{name: "no-format", command: []string{"/bin/garbage"}, end: ending{start: 126}, why: "could not be started: exec /bin/garbage: exec format error"},
	{name: "no-interpreter", command: []string{"/bin/script"}, end: ending{start: 127}, why: "could not be started: exec /bin/script: no such file or directory: the program exists, but its interpreter or loader does not"},
	{name: "no-permission", command: []string{"/bin/plain"}, end: ending{start: 126}, why: `could not be started: exec "/bin/plain": permission denied: it is no executable file`},
	{name: "no-program", command: []string{"/bin/nothing"}, end: ending{start: 127}, why: `could not be started: exec "/bin/nothing": no such file or directory`},
	{
		name: "unhealthy", script: "trap 'exit 0' TERM" + forever, flags: []string{"--health-cmd", "echo sick; exit 1", "--health-interval", "100ms", "--health-retries", "2", "--health-on-failure", "stop"},
		does: itself, why: "exited with code 0 after SIGTERM, because its health check has failed", last: "failed test  exit code 1: sick\n",
	},
	{
		name: "unhealthy-killed", script: "trap '' TERM" + forever, flags: []string{"--health-cmd", "exec tail /dev/zero", "--health-interval", "100ms", "--health-retries", "1", "--health-on-failure", "kill"},
		memory: 16 << 20, does: itself, end: ending{signal: 9, childOOM: true}, last: "failed test  exit code 137: Health check ran out of memory and was killed\n",
		why: `ended by SIGKILL, because its health check has failed; before that the kernel killed a process of it, out of memory at the limit of the container \(16 MiB\)`,
	},
	{name: "frozen", script: ":" + forever, does: frozenAndStopped, end: ending{signal: 9}, why: "ended by SIGKILL, asked for by STOP"},
	{name: "frozen-killed", script: ":" + forever, does: frozenAndKilled, end: ending{signal: 9}, why: "ended by SIGKILL, asked for by SIGNAL"},
	{name: "sandbox-ended", script: ":" + forever, does: sandboxEnded, end: ending{signal: 9}, why: "ended by SIGKILL, asked for by cri StopPodSandbox"},
	{name: "agent-away", script: ":" + forever, does: whileAway(false, false), end: ending{signal: 9}, why: "killed by SIGKILL, which nobody here has sent"},
	{name: "keeper-away", script: ":" + forever, does: keeperKilled, end: ending{signal: 9}, why: "killed by SIGKILL, which nobody here has sent"},
	{name: "agent-and-keeper-away", script: ":" + forever, does: whileAway(true, false), end: ending{signal: 9}, why: "killed by SIGKILL, which nobody here has sent"},
	{name: "keeper-and-nest-away", script: ":" + forever, does: pairKilled, end: ending{signal: 9}, why: "killed by SIGKILL, which nobody here has sent"},
	{name: "all-gone-and-it-runs", script: ":" + forever, does: allKilled, end: ending{lost: true}, why: "lost: agent, keeper and nest were all gone while it ran; what still ran of it was killed when the agent was back"},
	{name: "all-away", script: ":" + forever, does: whileAway(true, true), end: ending{lost: true}, why: "lost: agent, keeper and nest were all gone, and no readable record says how it ended"},
	{name: "node-restarted", script: ":" + forever, does: powerCut, gone: true, why: "node restarted: it was running when the node went down"},
}

// image has the deaths' programs.
func image(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	files = append(files,
		imagetest.File{Name: "bin/garbage", Mode: 0o755, Body: []byte{1, 2, 3, 4}},
		imagetest.File{Name: "bin/script", Mode: 0o755, Body: []byte("#!/bin/nowhere\n")},
		imagetest.File{Name: "bin/plain", Mode: 0o644, Body: []byte("#!/bin/sh\n")})
	ref := imagetest.NewRegistry(t).Push("endings", "1", imagetest.Image{
		Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}},
	}.Build())
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// only has the test have one of its deaths.
const only = "LONGSHORE_DEATH"

// TestEveryDeathIsToldRight: each face tells each death of its containers right, beside a containerd
// where CONTAINERD names one.
func TestEveryDeathIsToldRight(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		ref := image(t, n)
		faces := map[string]face{
			"cli": &cliFace{n: n, image: ref}, "cri": newCRIFace(t, n, ref), "nomad": newNomadFace(t, n, ref), "mesos": &mesosFace{n: n, image: ref},
		}
		cri := map[string]string{} // its statuses, by death
		for _, d := range deaths {
			if name := os.Getenv(only); name != "" && name != d.name {
				continue
			}
			for owner, f := range faces {
				t.Run(d.name+"/"+owner, func(t *testing.T) {
					if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil && d.high > 0 {
						t.Skip("only cgroup v2 has a memory.high")
					}
					if said := dies(t, n, owner, f, d); owner == "cri" {
						cri[d.name] = said
					}
				})
			}
		}
		t.Run("containerd", func(t *testing.T) { beside(t, ref, cri) })
		n.Check()
	})
}

// dies returns the face's words.
func dies(t *testing.T, n *nodetest.Node, owner string, f face, d death) string {
	t.Helper()
	if !f.start(t, d.name, d) {
		t.Skip("this face has no such container")
	}
	if !d.gone {
		defer f.remove(t)
	}
	var x *container
	if d.does != nil {
		x = find(t, n, owner)
		nodetest.Eventually(t, "it is up", func() bool {
			out, _ := n.CLI("logs", x.ID)
			return strings.Contains(out, "up")
		})
		if !d.does(t, n, f, x) {
			f.stop(t, syscall.SIGTERM, 0)
			f.ended(t)
			t.Skip("this face has no such call")
		}
	}
	if d.gone {
		if !strings.Contains(exitEvent(t, n, x.ID), strconv.Quote(d.why)) {
			t.Errorf("events: %s", exitEvent(t, n, x.ID))
		}
		switch now := find(t, n, owner); {
		case owner != "cli" && now != nil:
			t.Errorf("it is there: %+v", now)
		case owner != "cli":
		case now == nil || now.State != "exited" || !now.Autopsy.Lost || now.Autopsy.Verdict != d.why:
			t.Errorf("it has not returned as an ended container: %+v", now)
		default:
			f.remove(t)
		}
		return ""
	}
	said := f.ended(t)
	stop, signal := f.asks()
	limit := `the (container \(16 MiB\)|sandbox \(\d+ MiB\))` // a container of Mesos has its limit there
	want := regexp.MustCompile("^" + strings.NewReplacer("STOP", stop, "SIGNAL", signal, "LIMIT", limit).Replace(d.why) + "$")
	if x = find(t, n, owner); x == nil {
		// A failed start leaves no container behind; the caller has the reason.
		if _, words, _ := strings.Cut(said, "create container: "); d.end.start == 0 || !want.MatchString("could not be started: "+words) {
			t.Errorf("%s says %q, want %q", owner, said, want)
		}
		return said
	}
	why := x.Autopsy.Verdict
	t.Logf("%s: %s: %s", owner, said, why)
	if !want.MatchString(why) {
		t.Errorf("why: %q, want %q", why, want)
	}
	if x.State != "exited" || x.Autopsy.Status != d.end.status() || x.Autopsy.Lost != d.end.lost {
		t.Errorf("ps: %s, %+v", x.State, x.Autopsy)
	}
	if want := f.says(d.end, why); said != want {
		t.Errorf("%s says %q, want %q", owner, said, want)
	}
	f.told(t, d.end, why)
	if out, err := n.CLI("why", x.ID); err != nil || !strings.Contains(out, ": "+why+"\n") || !strings.Contains(out, d.last) {
		t.Errorf("why: %s, %v", out, err)
	}
	if e := exitEvent(t, n, x.ID); !strings.Contains(e, strconv.Quote(why)) {
		t.Errorf("events: %s", e)
	}
	return said
}

// exitEvent is the line of the event log that tells of a container's end.
func exitEvent(t *testing.T, n *nodetest.Node, id string) string {
	t.Helper()
	out, err := n.CLI("events", "--since", "0", "--json", "--no-follow")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, `"container.exited"`) && strings.Contains(line, id) {
			return line
		}
	}
	return ""
}
