package chaos

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// driver is a face as the kill matrix uses it. Names of containers are the test's; a container's key
// at the agent contains its name. Calls during which the agent may die return an error then.
type driver interface {
	// start makes a container that runs a shell's script, and starts it.
	start(name, script string) error
	// ended waits for a container's end and returns its status, 255 if nobody saw it.
	ended(name string) int
	// output is a container's standard output.
	output(name string) string
	// exec runs a script in a container and returns its status.
	exec(name, script string) (int, error)
	// stop sends SIGTERM, and returns when the container has ended.
	stop(name string) error
	// remove removes a container in any state.
	remove(name string)
}

// facesMatrix is the kill matrix of one face.
type facesMatrix struct {
	*matrix
	d   driver
	has string // the standing container, which stays through the rounds of several cells
	pid int    // its process
}

// matrixOf runs the cells of the kill matrix by a face's own calls.
func matrixOf(t *testing.T, config string, open func(*matrix) driver) {
	t.Helper()
	roottest.Run(t, func(t *testing.T) {
		reap(t)
		m := &facesMatrix{matrix: &matrix{t: t, n: nodetest.Start(t, nodetest.Options{Config: config}), counts: map[string]int{}}}
		m.d = open(m.matrix)
		for _, dead := range deaths() {
			for _, work := range []struct {
				name string
				do   func(all bool, kill func())
			}{{"idle", m.idle}, {"logs", m.logs}, {"create", m.create}, {"exec", m.exec}, {"stop", m.stop}} {
				cell := strings.Join(dead, "+") + " during " + work.name
				for range rounds(t) {
					begun := time.Now()
					m.round(cell, dead, work.do)
					t.Logf("%s: %.1f s", cell, time.Since(begun).Seconds())
				}
				if t.Failed() {
					t.Fatalf("stopped after %s", cell)
				}
			}
		}
		m.once()
	})
}

// round is matrix.round by the face's calls.
func (m *facesMatrix) round(cell string, dead []string, work func(all bool, kill func())) {
	m.t.Helper()
	if m.has == "" {
		m.has = m.name("stands")
		m.must(m.d.start(m.has, "sleep 100000; exit 1"))
		m.pid = m.ready(m.has)
	}
	all := len(dead) == 3
	work(all, func() { m.kill(dead) })
	r, found := m.record(m.has)
	switch running := found && r.State == "running"; {
	case !all && (!running || r.Pid != m.pid || !alive(m.pid)):
		m.t.Errorf("%s: the container that stands was process %d, alive: %v; the node says %q, process %d", cell, m.pid, alive(m.pid), r.State, r.Pid)
	case all && (running || alive(m.pid)):
		m.t.Errorf("%s: the container runs, alive: %v, and nobody can know how it will end", cell, alive(m.pid))
	case all:
		m.lost(cell, m.has)
		m.d.remove(m.has)
		m.has = ""
	}
	m.n.Check()
}

func (m *facesMatrix) name(what string) string {
	m.serial++
	return fmt.Sprintf("%s%d", what, m.serial)
}

func (m *facesMatrix) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.n.LogTail(3000))
	}
}

// listed is a container as the node lists it.
type listed struct {
	ID, Key, State string
	Pid            int
}

// record finds the container of a name.
func (m *facesMatrix) record(name string) (listed, bool) {
	m.t.Helper()
	out, err := m.n.CLI("ps", "-a", "--json")
	m.must(err)
	var list []listed
	m.must(json.Unmarshal([]byte(out), &list))
	for _, r := range list {
		if strings.Contains(r.Key, name) {
			return r, true
		}
	}
	return listed{}, false
}

// ready waits until a container runs and its survival is promised. It returns its process.
func (m *facesMatrix) ready(name string) int {
	m.t.Helper()
	var r listed
	roottest.Eventually(m.t, "container "+name+" runs", func() bool {
		r, _ = m.record(name)
		return r.State == "running"
	})
	return m.pidOf(r.ID)
}

// lost asserts that the face and the node say of a container that nobody saw its end.
func (m *facesMatrix) lost(cell, name string) {
	m.t.Helper()
	r, _ := m.record(name)
	why, err := m.n.CLI("why", r.ID)
	if code := m.d.ended(name); err != nil || code != 255 || !strings.Contains(why, "lost: agent, keeper and nest were all gone") {
		m.t.Errorf("%s: %s ended with %d: %s, %v", cell, name, code, why, err)
	}
}

// flooding is a script that writes 50,000 numbered lines of 1,000 bytes, 50 MB/s at most.
const flooding = `pad=$(printf '%0989d' 0); for c in $(seq 0 39); do
awk -v c=$c -v p=$pad 'BEGIN { for (i = 0; i < 1250; i++) printf "%09d %s\n", c*1250+i, p }' || exit 1
sleep 0.025; done; exit 7`

func (m *facesMatrix) logs(all bool, kill func()) {
	m.t.Helper()
	name, script := m.name("flood"), flooding
	if all {
		// An emulated machine may write all of it while the test reads. Nobody could lose its end then.
		script = strings.TrimSuffix(flooding, "exit 7") + "sleep 100000"
	}
	m.must(m.d.start(name, script))
	m.ready(name)
	roottest.Eventually(m.t, "the output grows", func() bool { return len(m.d.output(name)) > 1<<20 })
	kill()
	defer m.d.remove(name)
	if all {
		m.lost("logs", name)
		return
	}
	if code := m.d.ended(name); code != 7 && !m.orphan(code) {
		r, _ := m.record(name)
		why, _ := m.n.CLI("why", r.ID)
		m.t.Errorf("the writer ended with %d, want 7: %s", code, why)
	}
	var lines []string
	roottest.Eventually(m.t, "the output has all that was written", func() bool {
		lines = strings.SplitAfter(m.d.output(name), "\n")
		return len(lines) >= floodLines+1
	})
	for i, line := range lines[:len(lines)-1] {
		if len(line) != floodLine || line[:9] != fmt.Sprintf("%09d", i) {
			m.t.Fatalf("line %d of the output is %.40q, %d bytes", i, line, len(line))
		}
	}
}

// orphan reports whether a status is lost as limits.md says of kernels before 6.15.
func (m *facesMatrix) orphan(code int) bool { return code == 255 && !nodetest.KernelTellsEnds() }

func (m *facesMatrix) create(all bool, kill func()) {
	m.t.Helper()
	type made struct {
		name string
		err  error
	}
	results := make(chan made, 3)
	for range cap(results) {
		name := m.name("made")
		go func() { results <- made{name, m.d.start(name, "exit 5")} }()
	}
	kill()
	for range cap(results) {
		r := <-results
		if r.err == nil {
			if code := m.d.ended(r.name); code != 5 && code != 255 {
				m.t.Errorf("%s ended with %d, want 5", r.name, code)
			}
		}
		m.d.remove(r.name)
	}
	name := m.name("after")
	m.must(m.d.start(name, "exit 6"))
	if code := m.d.ended(name); code != 6 {
		m.t.Errorf("a container made afterwards ended with %d, want 6", code)
	}
	m.d.remove(name)
}

func (m *facesMatrix) exec(all bool, kill func()) {
	m.t.Helper()
	type result struct {
		code int
		err  error
	}
	done := make(chan result, 1)
	begun := m.name("begun")
	go func() {
		code, err := m.d.exec(m.has, "echo >/"+begun+"; sleep 0.3; exit 9")
		done <- result{code, err}
	}()
	roottest.Eventually(m.t, "the program in the container has begun", func() bool {
		code, err := m.d.exec(m.has, "test -e /"+begun)
		return err == nil && code == 0
	})
	kill()
	if r := <-done; r.err == nil && r.code != 9 && r.code != 255 && r.code != 137 {
		m.t.Errorf("the program ended with %d, want 9, or not known", r.code)
	}
	if all {
		return
	}
	if code, err := m.d.exec(m.has, "exit 9"); err != nil || code != 9 {
		m.t.Errorf("a program started afterwards ended with %d, %v, want 9", code, err)
	}
}

func (m *facesMatrix) stop(all bool, kill func()) {
	m.t.Helper()
	name := m.name("stopped")
	m.must(m.d.start(name, "trap 'sleep 0.2; exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	roottest.Eventually(m.t, "the container has its handler", func() bool { return strings.Contains(m.d.output(name), "ready") })
	m.ready(name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.d.stop(name) // the agent may die over it
	}()
	kill()
	<-done
	m.must(m.d.stop(name))
	if code := m.d.ended(name); code != 3 && (code != 255 || !all) && !m.orphan(code) {
		r, _ := m.record(name)
		why, _ := m.n.CLI("why", r.ID)
		m.t.Errorf("the stopped container ended with %d, want 3: %s", code, why)
	}
	m.d.remove(name)
}
