package tour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// killed is the exit status of a program that SIGKILL ends.
const killed = 137

// endless is more ends than a program has in the test.
const endless = 1000

// delayed is the number of ends before the stop in a delay: the sixth delay is 3.2 s.
const delayed = 6

// cell is one container of the table of restart policies.
type cell struct {
	policy string
	code   int    // of its program's ends; killed is SIGKILL from outside of the container
	by     string // the caller's requests
	ends   int    // number of runs that end by themselves
}

// changed is the policy that update gives instead of another one.
var changed = map[string]string{"no": "always", "on-failure": "no", "on-failure:2": "on-failure:5", "always": "on-failure", "unless-stopped": "no"}

func cells() (list []cell) {
	for _, policy := range []string{"no", "on-failure", "on-failure:2", "always", "unless-stopped"} {
		for _, code := range []int{0, 1, killed} {
			for _, by := range []string{"nobody", "stop", "kill", "hup", "stop-start", "stop-in-delay", "update", "meanwhile"} {
				c := cell{policy: policy, code: code, by: by, ends: 2}
				switch {
				case by == "stop-in-delay", by == "nobody" && policy == "on-failure:2":
					c.ends = endless
				case by != "nobody" && (policy == "no" || policy != "always" && policy != "unless-stopped" && code == 0):
					c.ends = 0 // it would not run when it is stopped
				}
				if by != "stop-in-delay" || code != killed { // each end takes a while
					list = append(list, c)
				}
			}
		}
	}
	return list
}

// loops reports whether the cell's program would end for ever.
func (c cell) loops() bool { return c.ends == endless && c.policy != "on-failure:2" }

func (c cell) name() string {
	return fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(c.policy, ":", "-"), c.code, c.by)
}

// script is the cell's program: it counts its starts in /c/n, and the start that has come far in /c/up.
func (c cell) script() string {
	begin := `read n </c/n; n=$((n+1)); echo $n >/c/n; `
	if c.code == killed {
		return begin + `echo $n >/c/up; exec sleep 100000`
	}
	return begin + fmt.Sprintf(`[ $n -gt %d ] || exit %d; trap "exit %d" TERM HUP; echo $n >/c/up; while :; do sleep 100000 & wait; done`, c.ends, c.code, c.code)
}

// side is one of the engines that run the table.
type side struct {
	tool
	name      string
	die, live func() // end the daemon by SIGKILL, and start it
	boot      func() // end all, as a boot does, without starting the daemon
	cells     []cell
	failed    map[string]string   // the error of the last start
	killedAt  map[string]int      // the start of the program that the test has killed last
	refused   map[string]bool     // cells with a refused request
	mu        sync.Mutex          // guards events
	events    map[string][]string // of the daemon's present life
}

// state is the state of a cell's container.
type state struct {
	status        string
	count, code   int
	pid           int
	starts, ready int
}

func (s *side) file(c cell, name string) string { return filepath.Join(s.dir, "cells", c.name(), name) }

func (s *side) number(c cell, name string) int {
	data, _ := os.ReadFile(s.file(c, name))
	n, _ := strconv.Atoi(strings.TrimSpace(string(data))) // a file that is being written is read again
	return n
}

// states inspects all containers at once.
func (s *side) states(t *testing.T) map[string]state {
	t.Helper()
	out := map[string]state{}
	var names strings.Builder
	for _, c := range s.cells {
		names.WriteString(" " + c.name())
		out[c.name()] = state{starts: s.number(c, "n"), ready: s.number(c, "up")}
	}
	got := s.run(t, "$T inspect --type container -f '{{.Name}} {{.State.Status}} {{.RestartCount}} {{.State.ExitCode}} {{.State.Pid}} {{.State.Error}}'"+names.String())
	if got.status != 0 {
		t.Fatalf("%s: inspect: %s", s.name, got.errors)
	}
	for line := range strings.Lines(got.out) {
		var name string
		var now state
		if _, err := fmt.Sscan(line, &name, &now.status, &now.count, &now.code, &now.pid); err != nil {
			t.Fatalf("%s: %q: %v", s.name, line, err)
		}
		name = strings.TrimPrefix(name, "/")
		now.starts, now.ready = out[name].starts, out[name].ready
		s.failed[name] = strings.Join(strings.Fields(line)[5:], " ")
		out[name] = now
	}
	return out
}

// begin creates and starts all containers.
func (s *side) begin(t *testing.T) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(4)
	for _, c := range s.cells {
		if err := os.MkdirAll(filepath.Dir(s.file(c, "n")), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.file(c, "n"), []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		g.Go(func() error {
			got := s.run(t, fmt.Sprintf("$T run -d --network none --name %s --restart %s -v %s:/c box sh -c '%s'", c.name(), c.policy, filepath.Dir(s.file(c, "n")), c.script()))
			if got.status != 0 {
				return fmt.Errorf("%s: %s: %s", s.name, c.name(), got.errors)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// settle waits until no container changes by itself, and kills the programs that are to be killed.
// inDelay is called once for each container that waits for its next start after delayed ends.
func (s *side) settle(t *testing.T, inDelay func(cell)) map[string]state {
	t.Helper()
	var now map[string]state
	var last string
	began := time.Now()
	defer func() {
		if t.Failed() || time.Since(began) > 30*time.Second {
			t.Logf("%s: %s", s.name, last)
		}
	}()
	stopped := map[string]bool{}
	roottest.Eventually(t, s.name+": all containers have come to rest", func() bool {
		now = s.states(t)
		rest := true
		for _, c := range s.cells {
			is := now[c.name()]
			up := is.status == "running" && is.ready == is.starts
			switch {
			case is.status == "exited", inDelay == nil && c.loops() && is.status == "restarting":
				continue
			case up && c.code == killed && is.starts <= c.ends && s.killedAt[c.name()] < is.starts:
				if is.pid > 1 && syscall.Kill(is.pid, syscall.SIGKILL) == nil {
					s.killedAt[c.name()] = is.starts
				}
			case up && is.starts > c.ends:
				continue
			case is.status == "restarting" && is.starts >= delayed && inDelay != nil && !stopped[c.name()]:
				stopped[c.name()] = true
				inDelay(c)
			}
			if rest {
				last = ""
			}
			rest, last = false, last+fmt.Sprintf("%s %+v\n", c.name(), is)
		}
		return rest
	})
	return now
}

// end ends the programs of cells from outside of their containers.
func (s *side) end(t *testing.T, now map[string]state, by ...string) {
	t.Helper()
	for _, c := range s.cells {
		sig := syscall.SIGHUP
		if c.code == killed {
			sig = syscall.SIGKILL
		}
		if is := now[c.name()]; slices.Contains(by, c.by) && is.status == "running" && is.pid > 1 {
			s.down(t, c)
			if err := syscall.Kill(is.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Errorf("%s: kill %s: %v", s.name, c.name(), err)
			}
		}
	}
}

// request types a line with the names of all cells of a kind, and notes those that are refused.
func (s *side) request(t *testing.T, line, by string) {
	t.Helper()
	var names []string
	for _, c := range s.cells {
		if c.by == by {
			names = append(names, c.name())
		}
	}
	got := s.run(t, line+" "+strings.Join(names, " "))
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^` + name + `$`).MatchString(got.out) {
			s.refused[name] = true
		}
	}
}

// follow notes the events of containers until the daemon dies.
func (s *side) follow(t *testing.T, since time.Time) (done func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("exec $T events --since %s --filter type=container --format '{{.Actor.Attributes.name}} {{.Action}}'", since.UTC().Format(time.RFC3339Nano)))
	cmd.Env = append(append(os.Environ(), "T="+s.command, "HOME="+s.dir), s.env...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.events = map[string][]string{}
	s.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			name, action, _ := strings.Cut(lines.Text(), " ")
			s.mu.Lock()
			s.events[name] = append(s.events[name], action)
			s.mu.Unlock()
		}
	})
	return func() {
		cancel()
		work.Wait()
		_ = cmd.Wait()
	}
}

// row is the visible state of a cell.
type row struct {
	status              string
	count, code, starts int
	refused             bool
	events              string
}

func (s *side) rows(now map[string]state) map[string]row {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]row{}
	for _, c := range s.cells {
		is := now[c.name()]
		r := row{is.status, is.count, is.code, is.starts, s.refused[c.name()], strings.Join(slices.DeleteFunc(slices.Clone(s.events[c.name()]), func(e string) bool { return slices.Contains(unlikeEvents, e) }), " ")}
		if c.loops() { // it has as many restarts as it had time for
			r.count, r.starts, r.events = 0, 0, ""
			if r.status != "exited" {
				r.status, r.code = "again and again", 0
			}
		}
		out[c.name()] = r
	}
	return out
}

// unlikeEvents are the events that only one of the engines has: ours of a container's ways between docker's
// states, docker's of each request of a caller.
var unlikeEvents = []string{"creating", "renew", "returned", "kill", "stop"}

// The reasons for differences between the engines.
const (
	knowsCode   = "the keeper has the exit status of a program that ends while the agent is dead; dockerd has 255, and starts the container as after a boot"
	startsAgain = "dockerd starts containers that a user has stopped at each start of the daemon; our agent does after a boot"
	endsAll     = "a dockerd without live-restore ends all containers when it starts again; our agent never does"
	saysEnd     = "an end that the daemon has not seen is a die event of ours"
)

// reason returns why the rows of a cell may differ after a death; "" is for none. before is ours before it.
func reason(death string, c cell, before, ours, theirs row) string {
	late := ours
	late.events = strings.TrimSpace(strings.TrimPrefix(late.events, "die"))
	again := before
	again.events = ours.events
	switch {
	case death == "nothing":
	case late == theirs:
		return saysEnd
	case death == "daemon" && c.by == "meanwhile":
		return knowsCode
	case death == "daemon without live-restore" && ours == again && before.status == "running":
		return endsAll
	case strings.HasPrefix(death, "daemon") && ours == again && c.policy != "no" && c.policy != "unless-stopped" && c.by != "nobody" &&
		(theirs.status == "again and again" || theirs.status == "running" && theirs.count == 0 && theirs.events == "start"):
		return startsAgain
	}
	return ""
}

// TestRestartsBesideDocker runs the table of policies, exit statuses and requests with Longshore and with
// dockerd 28, of the packages in LONGSHORE_DOCKER_DIR. Then SIGKILL ends both daemons.
func TestRestartsBesideDocker(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		compare(t, newSides(t, cells(), "--live-restore"), []string{"nothing", "daemon"})
	})
}

// TestBootsBesideDocker has a boot of both nodes, with containers in the states before it. Then SIGKILL ends
// both daemons, dockerd being one without live-restore.
func TestBootsBesideDocker(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		list := slices.DeleteFunc(cells(), func(c cell) bool {
			return c.code == killed || !slices.Contains([]string{"nobody", "stop", "kill", "stop-start"}, c.by)
		})
		compare(t, newSides(t, list), []string{"nothing", "boot", "daemon without live-restore"})
	})
}

// newSides starts both engines.
func newSides(t *testing.T, list []cell, flags ...string) []*side {
	t.Helper()
	d, home, docker := startDocker(t, flags...)
	n := nodetest.Start(t, nodetest.Options{})
	sides := []*side{{
		name: "longshore", die: n.Kill, live: n.Up, boot: n.PowerCut,
		tool: tool{dir: prepare(t, archive(t)), command: filepath.Join(nodetest.Bin(t), "longshore"), env: []string{"LONGSHORE_SOCKET=" + filepath.Join(n.State, "control.sock")}},
	}, {
		name: "docker", tool: docker, die: func() {
			if err := d.Kill(); err != nil {
				t.Error(err)
			}
		},
		live: func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), roottest.Patience())
			defer cancel()
			if err := errors.Join(d.Restart(), d.Answers(ctx)); err != nil {
				t.Error(err)
			}
		},
		boot: func() {
			if err := d.Kill(); err != nil {
				t.Error(err)
			}
			killRest(t, home)
			if err := os.RemoveAll(filepath.Join(home, "exec")); err != nil {
				t.Error(err)
			}
		},
	}}
	for _, s := range sides {
		s.cells, s.killedAt, s.refused, s.failed = list, map[string]int{}, map[string]bool{}, map[string]string{}
	}
	return sides
}

// killRest kills the processes that are left of a dockerd: all that have a mount below its directory.
func killRest(t *testing.T, home string) {
	t.Helper()
	of := func(pid int, file string) string {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		return string(data)
	}
	var killed []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && pid > 1 && strings.Contains(of(pid, "mountinfo"), home+"/") && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed = append(killed, pid)
		}
	}
	roottest.Eventually(t, "docker's processes are dead", func() bool {
		return !slices.ContainsFunc(killed, func(pid int) bool {
			_, rest, alive := strings.Cut(of(pid, "stat"), ") ")
			return alive && !strings.HasPrefix(rest, "Z")
		})
	})
	t.Logf("the boot has killed %d processes of docker's", len(killed))
}

// compare runs the table on both engines, and compares the rows after each death.
func compare(t *testing.T, sides []*side, deaths []string) {
	t.Helper()
	rows := make([][]map[string]row, len(sides))
	var work sync.WaitGroup
	for i, s := range sides {
		rows[i] = make([]map[string]row, len(deaths))
		work.Go(func() { s.table(t, deaths, rows[i]) })
	}
	work.Wait()
	for phase, death := range deaths {
		differ := map[string]int{}
		for _, c := range sides[0].cells {
			ours, theirs := rows[0][phase][c.name()], rows[1][phase][c.name()]
			if ours == theirs {
				continue
			}
			why := reason(death, c, rows[0][max(phase-1, 0)][c.name()], ours, theirs)
			differ[why]++
			if why == "" {
				t.Errorf("%s dies, %s:\nlongshore: %+v\ndocker:    %+v %s", death, c.name(), ours, theirs, sides[1].failed[c.name()])
			}
		}
		t.Logf("%s dies: %d cells; different ones: %v", death, len(sides[0].cells), differ)
	}
}

// table runs the whole table on one engine.
func (s *side) table(t *testing.T, deaths []string, rows []map[string]row) {
	t.Helper()
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %s: %v", s.name, what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	var all strings.Builder
	for _, c := range s.cells {
		all.WriteString(" " + c.name())
	}
	defer func() { s.run(t, "$T rm -f"+all.String()) }()
	if got := s.run(t, "$T load -i box.tar"); got.status != 0 {
		t.Errorf("%s: load: %s", s.name, got.errors)
		return
	}
	done := s.follow(t, time.Now())
	s.begin(t)
	lap("begin")
	var stops sync.WaitGroup
	now := s.settle(t, func(c cell) { stops.Go(func() { s.run(t, "$T stop -t 1 "+c.name()) }) })
	stops.Wait()
	lap("settle")
	s.requests(t)
	s.end(t, now, "update", "hup")
	lap("acts")
	for phase, death := range deaths {
		at := time.Now()
		switch death {
		case "daemon", "daemon without live-restore":
			s.die()
			done()
			for _, c := range s.cells { // dockerd starts some of these
				if now[c.name()].status == "exited" {
					s.down(t, c)
				}
			}
			s.end(t, now, "meanwhile")
			s.live()
			done = s.follow(t, at)
		case "boot":
			s.boot()
			done()
			for _, c := range s.cells {
				s.down(t, c)
			}
			s.live()
			done = s.follow(t, at)
		}
		now = s.settle(t, nil)
		rows[phase] = s.rows(now)
		lap(death)
	}
	done()
}

// down notes that a cell's program does not run, so that settle waits for its next start.
func (s *side) down(t *testing.T, c cell) {
	t.Helper()
	if err := os.WriteFile(s.file(c, "up"), []byte("0\n"), 0o644); err != nil {
		t.Error(err)
	}
}

// requests types the requests of all cells.
func (s *side) requests(t *testing.T) {
	t.Helper()
	s.request(t, "$T stop -t 1", "stop")
	s.request(t, "$T stop -t 1", "stop-start")
	s.request(t, "$T start", "stop-start")
	s.request(t, "$T kill", "kill")
	s.request(t, "$T kill -s HUP", "hup")
	for policy, to := range changed {
		for _, c := range s.cells {
			if c.by == "update" && c.policy == policy {
				if got := s.run(t, "$T update --restart="+to+" "+c.name()); got.status != 0 {
					s.refused[c.name()] = true
				}
			}
		}
	}
}
