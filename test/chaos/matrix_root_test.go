package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// matrix is one run of the kill matrix: each pair of agent, keeper and nest, and all three, die in
// the same moment while the node is idle, writes logs, creates, executes and stops.
type matrix struct {
	t      *testing.T
	n      *nodetest.Node
	image  string
	pod    *nodetest.Pod
	serial int
	keep   []*standing
	counts map[string]int // exits in the event log, by container
}

// standing is a container that runs through all rounds of a cell.
type standing struct {
	name string
	id   string
	pid  int
}

// The victims, by cell.
func deaths() [][]string {
	return [][]string{{"agent", "keeper"}, {"agent", "nest"}, {"keeper", "nest"}, {"agent", "keeper", "nest"}}
}

// TestKillMatrix: as docs/limits.md promises, a container survives the death of any two of the three
// processes, with its output and its exit status; and if all three die, each end is recorded once,
// as lost, and by a text that names them. LONGSHORE_MATRIX_ROUNDS is the number of rounds in each
// cell.
func TestKillMatrix(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		reap(t)
		rounds := rounds(t)
		m := &matrix{t: t, n: nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"}), counts: map[string]int{}}
		m.image = m.n.Busybox(t)
		m.pod = m.n.RunPod(t, m.n.PodConfig("matrix"))
		for _, dead := range deaths() {
			for _, work := range []struct {
				name string
				do   func(all bool, kill func())
			}{{"idle", m.idle}, {"logs", m.logs}, {"create", m.create}, {"exec", m.exec}, {"stop", m.stop}} {
				begun := time.Now()
				cell := strings.Join(dead, "+") + " during " + work.name
				for range rounds {
					m.round(cell, dead, work.do)
				}
				t.Logf("%s: %d rounds in %.1f s", cell, rounds, time.Since(begun).Seconds())
				if t.Failed() {
					t.Fatalf("stopped after %s", cell)
				}
			}
		}
		m.once()
	})
}

// rounds is how often each cell is tried.
func rounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("LONGSHORE_MATRIX_ROUNDS")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reap reaps the orphans of this process, the first of its pid namespace, as a machine's first
// process does. A container's pid namespace ends only when all of its processes have been reaped.
// Their starters wait for the agent and the processes of the CLI.
func reap(t *testing.T) {
	t.Helper()
	told, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(told, syscall.SIGCHLD)
	t.Cleanup(func() { signal.Stop(told); close(done) })
	go func() {
		for {
			select {
			case <-told:
			case <-done:
				return
			}
			stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
			for _, stat := range stats {
				b, _ := os.ReadFile(stat) // it may have ended
				name, rest, _ := strings.Cut(string(b), ") ")
				if f := strings.Fields(rest); len(f) < 2 || f[0] != "Z" || f[1] != strconv.Itoa(os.Getpid()) || strings.HasSuffix(name, "(longshore") {
					continue
				}
				if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
					_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
				}
			}
		}
	}()
}

// round starts missing containers, kills during work, and compares.
func (m *matrix) round(cell string, dead []string, work func(all bool, kill func())) {
	m.t.Helper()
	m.stand()
	all := len(dead) == 3
	work(all, func() { m.kill(dead) })
	for _, s := range m.keep {
		st := m.status(s)
		switch running := st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING; {
		case !all && !running:
			m.t.Errorf("%s: container %s ended with %d, %s: %s", cell, s.name, st.GetExitCode(), st.GetReason(), st.GetMessage())
		case !all && !alive(s.pid):
			m.t.Errorf("%s: the process of container %s is gone, and it is said to run", cell, s.name)
		case all && running:
			m.t.Errorf("%s: container %s runs, and nobody can know how it will end", cell, s.name)
		case all && (st.GetExitCode() != 255 || !strings.Contains(st.GetMessage(), "lost: agent, keeper and nest were all gone")):
			m.t.Errorf("%s: container %s ended with %d, %s: %q", cell, s.name, st.GetExitCode(), st.GetReason(), st.GetMessage())
		}
	}
	if all {
		for _, s := range m.keep {
			m.remove(s.id)
		}
		m.keep = nil
	}
	m.n.Check()
}

// stand starts the containers that are to stay: a quiet one, one that reads its input, one on a
// terminal, and one of the CLI's.
func (m *matrix) stand() {
	m.t.Helper()
	if len(m.keep) > 0 {
		return
	}
	m.serial++
	for _, name := range []string{"quiet", "reader", "terminal"} {
		script := "cat; exit 1" // ends if its input does
		if name == "quiet" {
			script = "exec sleep 100000"
		}
		cfg := nodetest.ContainerConfig(fmt.Sprintf("%s-%d", name, m.serial), m.image, "/bin/sh", "-c", script)
		cfg.Stdin, cfg.Tty = name != "quiet", name == "terminal"
		c := m.pod.Run(m.t, cfg)
		m.keep = append(m.keep, &standing{name: name, id: c.ID})
	}
	name := fmt.Sprintf("cli-%d", m.serial)
	out, err := m.n.CLI("run", "-d", "--name", name, m.image, "sleep", "100000")
	if err != nil {
		m.t.Fatal(err)
	}
	m.keep = append(m.keep, &standing{name: name, id: strings.TrimSpace(out)})
	for _, s := range m.keep {
		s.pid = m.pidOf(s.id)
	}
}

// pidOf returns the pid of a running container, once it is so old that its survival is promised.
func (m *matrix) pidOf(id string) int {
	m.t.Helper()
	out, err := m.n.CLI("inspect", "--format", "{{.State.Pid}}", id)
	if err != nil {
		m.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || !alive(pid) {
		m.t.Fatalf("the process of %s is %q, %v", id, out, err)
	}
	roottest.Eventually(m.t, "the agent has a copy of what the keeper holds of it", func() bool { return nodetest.HasPidfd(m.n.Pid(), pid) })
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// kill kills the processes in one moment, and starts the agent again if it was one of them.
func (m *matrix) kill(dead []string) {
	m.t.Helper()
	var pids []int
	for _, d := range dead {
		if d == "agent" {
			pids = append(pids, m.n.Pid())
			continue
		}
		pids = append(pids, m.n.Processes(d)...)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	if slices.Contains(dead, "agent") {
		m.n.Kill()
		pids = pids[1:] // it is reaped
	}
	nodetest.KillTogether(m.t, pids...)
	if slices.Contains(dead, "agent") {
		m.n.Up()
	}
	roottest.Eventually(m.t, "there are one keeper and one nest", func() bool {
		return len(m.n.Processes("keeper")) == 1 && len(m.n.Processes("nest")) == 1
	})
}

func (m *matrix) status(s *standing) *runtimeapi.ContainerStatus {
	m.t.Helper()
	if strings.HasPrefix(s.name, "cli-") {
		return m.cliStatus(s.id)
	}
	var st *runtimeapi.ContainerStatus
	m.retry("ContainerStatus", func() error {
		r, err := m.n.CRI.ContainerStatus(m.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: s.id})
		st = r.GetStatus()
		return err
	})
	return st
}

// cliStatus is a container of the CLI's, in CRI's words.
func (m *matrix) cliStatus(id string) *runtimeapi.ContainerStatus {
	m.t.Helper()
	out, err := m.n.CLI("inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", id)
	if err != nil {
		m.t.Fatal(err)
	}
	st := &runtimeapi.ContainerStatus{State: runtimeapi.ContainerState_CONTAINER_EXITED}
	running, code, _ := strings.Cut(strings.TrimSpace(out), " ")
	if running == "true" {
		st.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		return st
	}
	n, err := strconv.Atoi(code)
	if err != nil {
		m.t.Fatalf("inspect: %q", out)
	}
	st.ExitCode = int32(n)
	if st.Message, err = m.n.CLI("why", id); err != nil {
		m.t.Fatal(err)
	}
	return st
}

// retry calls fn again while the node cannot tell the call's outcome, as kubelet does.
func (m *matrix) retry(what string, fn func() error) {
	m.t.Helper()
	roottest.Eventually(m.t, what+" works", func() bool {
		err := fn()
		if err != nil && status.Code(err) != codes.Unavailable {
			m.t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

func (m *matrix) remove(id string) {
	m.t.Helper()
	if _, err := m.n.CLI("rm", "-f", id); err != nil {
		m.t.Error(err)
	}
}

func (m *matrix) idle(_ bool, kill func()) { kill() }

// flood is a container's log at 50 MB/s, as lines of 1,000 bytes.
const (
	floodLine  = 1000
	floodLines = 50_000
)

// logs kills in the middle of a second of output, and compares every line.
func (m *matrix) logs(all bool, kill func()) {
	m.t.Helper()
	m.serial++
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	cfg := nodetest.ContainerConfig(fmt.Sprintf("flood-%d", m.serial), m.image, "/writer", "flood")
	cfg.Mounts = []*runtimeapi.Mount{{HostPath: self, ContainerPath: "/writer", Readonly: true}}
	c := m.pod.Run(m.t, cfg)
	roottest.Eventually(m.t, "the log grows", func() bool {
		st, err := os.Stat(c.Log)
		return err == nil && st.Size() > 1<<20
	})
	m.pidOf(c.ID)
	kill()
	st := c.WaitExited(m.t)
	defer m.remove(c.ID)
	if all {
		if st.GetExitCode() != 255 {
			m.t.Errorf("the writer ended with %d: %s", st.GetExitCode(), st.GetMessage())
		}
		return
	}
	if st.GetExitCode() != 7 && !m.lostOrphan(st) {
		m.t.Errorf("the writer ended with %d, want 7: %s", st.GetExitCode(), st.GetMessage())
	}
	b, err := os.ReadFile(c.Log)
	if err != nil {
		m.t.Fatal(err)
	}
	stdout, _, err := reassemble(b)
	if err != nil {
		m.t.Fatal(err)
	}
	next := 0
	for line := range bytes.Lines(stdout) {
		n, err := strconv.Atoi(string(bytes.TrimLeft(bytes.Fields(line)[0], "0")))
		if next == 0 && string(bytes.Fields(line)[0]) == strings.Repeat("0", 9) {
			n, err = 0, nil
		}
		if err != nil || n != next || len(line) != floodLine {
			m.t.Fatalf("line %d of the log is %.40q, %d bytes", next, line, len(line))
		}
		next++
	}
	if next != floodLines {
		m.t.Errorf("the log has %d lines, want %d", next, floodLines)
	}
}

// flood writes for a second and ends with 7.
func flood() int {
	line := bytes.Repeat([]byte("x"), floodLine)
	line[floodLine-1], line[9] = '\n', ' '
	begun := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range floodLines {
		for time.Duration(i)*time.Second/floodLines > time.Since(begun) {
			<-tick.C
		}
		copy(line, fmt.Sprintf("%09d", i))
		if _, err := os.Stdout.Write(line); err != nil {
			return 1
		}
	}
	return 7
}

// lostOrphan reports whether an exit status is lost as limits.md says of kernels before 6.15.
func (m *matrix) lostOrphan(st *runtimeapi.ContainerStatus) bool {
	return !nodetest.KernelTellsEnds() && st.GetExitCode() == 255 && strings.Contains(st.GetMessage(), "older than 6.15")
}

// create kills while containers are created and started. A call fails as unavailable at most, and
// new containers work.
func (m *matrix) create(_ bool, kill func()) {
	m.t.Helper()
	m.serial++
	type made struct {
		id  string
		err error
	}
	results := make(chan made, 4)
	for i := range cap(results) {
		cfg := nodetest.ContainerConfig(fmt.Sprintf("made-%d-%d", m.serial, i), m.image, "/bin/sh", "-c", "exit 5")
		go func() {
			r, err := m.n.CRI.CreateContainer(m.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: m.pod.ID, Config: cfg, SandboxConfig: m.pod.Config})
			if err == nil {
				_, err = m.n.CRI.StartContainer(m.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
			}
			results <- made{r.GetContainerId(), err}
		}()
	}
	kill()
	for range cap(results) {
		r := <-results
		if r.err != nil && status.Code(r.err) != codes.Unavailable && !errors.Is(r.err, context.Canceled) {
			m.t.Errorf("create: %v", r.err)
		}
		if r.err == nil {
			st := (&nodetest.Container{ID: r.id, Pod: m.pod}).WaitExited(m.t)
			if c := st.GetExitCode(); c != 5 && c != 255 {
				m.t.Errorf("a container ended with %d, want 5: %s", c, st.GetMessage())
			}
		}
	}
	m.sweep("made-")
	c := m.pod.Run(m.t, nodetest.ContainerConfig(fmt.Sprintf("after-%d", m.serial), m.image, "/bin/sh", "-c", "exit 6"))
	if st := c.WaitExited(m.t); st.GetExitCode() != 6 {
		m.t.Errorf("a container made afterwards ended with %d, want 6: %s", st.GetExitCode(), st.GetMessage())
	}
	m.remove(c.ID)
}

// sweep removes the pod's containers of a name.
func (m *matrix) sweep(prefix string) {
	m.t.Helper()
	var list *runtimeapi.ListContainersResponse
	m.retry("ListContainers", func() (err error) {
		list, err = m.n.CRI.ListContainers(m.t.Context(), &runtimeapi.ListContainersRequest{})
		return err
	})
	for _, c := range list.GetContainers() {
		if strings.HasPrefix(c.GetMetadata().GetName(), prefix) {
			m.retry("RemoveContainer", func() error {
				_, err := m.n.CRI.RemoveContainer(m.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()})
				return err
			})
		}
	}
}

// exec kills while a program runs in a container. The call fails as unavailable, or says how the
// program ended.
func (m *matrix) exec(all bool, kill func()) {
	m.t.Helper()
	done := make(chan error, 1)
	go func() {
		r, err := m.n.CRI.ExecSync(m.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: m.keep[0].id, Cmd: []string{"/bin/sh", "-c", "echo begun >&2; sleep 0.3; exit 9"}, Timeout: 20})
		if err == nil && r.GetExitCode() != 9 && r.GetExitCode() != 255 {
			err = fmt.Errorf("the program ended with %d, want 9", r.GetExitCode())
		}
		if err != nil && status.Code(err) == codes.Unavailable {
			err = nil
		}
		done <- err
	}()
	kill()
	if err := <-done; err != nil && !all {
		m.t.Errorf("exec: %v", err)
	}
	if all {
		return
	}
	m.retry("exec afterwards", func() error {
		r, err := m.n.CRI.ExecSync(m.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: m.keep[0].id, Cmd: []string{"/bin/sh", "-c", "exit 9"}, Timeout: 20})
		if err == nil && r.GetExitCode() != 9 {
			m.t.Errorf("a program started afterwards ended with %d, want 9", r.GetExitCode())
		}
		return err
	})
}

// stop kills while a container is being stopped. It ends by its own handler, and its record says so.
func (m *matrix) stop(all bool, kill func()) {
	m.t.Helper()
	m.serial++
	c := m.pod.Run(m.t, nodetest.ContainerConfig(fmt.Sprintf("stopped-%d", m.serial), m.image, "/bin/sh", "-c", "trap 'sleep 0.2; exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	roottest.Eventually(m.t, "the container has its handler", func() bool { return strings.Contains(c.ReadLog(m.t), "ready") })
	m.pidOf(c.ID)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = m.n.CRI.StopContainer(m.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 20})
	}()
	kill()
	<-done
	m.retry("StopContainer", func() error {
		_, err := m.n.CRI.StopContainer(m.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 20})
		return err
	})
	st := c.WaitExited(m.t)
	if code := st.GetExitCode(); code != 3 && (code != 255 || !all) && !m.lostOrphan(st) {
		m.t.Errorf("the stopped container ended with %d, want 3: %s", code, st.GetMessage())
	}
	m.remove(c.ID)
}

// once checks that the event log has at most one exit of each container, without a gap.
func (m *matrix) once() {
	m.t.Helper()
	var last uint64
	for _, e := range m.n.Events() {
		if e.Seq != last+1 {
			m.t.Errorf("event %d follows %d", e.Seq, last)
		}
		last = e.Seq
		if e.Kind == "container.exited" {
			if m.counts[e.Container]++; m.counts[e.Container] > 1 {
				m.t.Errorf("container %s has %d exit events", e.Container, m.counts[e.Container])
			}
		}
	}
	if len(m.counts) == 0 {
		m.t.Error("the event log has no exits: this proves nothing")
	}
}
