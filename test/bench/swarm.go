package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
	"github.com/longshore/longshore/test/dockerd"
)

const (
	swarmTasks  = 50
	swarmRounds = 5
)

// The workers that are compared, beside ours.
const (
	dockerWorker = "dockerd"
	swarmkit     = "swarmkit"
)

// The names of the measurements of a Swarm's workers.
const (
	swarmStart   = "start of Swarm tasks"
	swarmStop    = "stop of Swarm tasks"
	swarmMemory  = "memory beside a Swarm task"
	swarmPrivate = "private memory of an idle worker"
)

// swarm measures our worker of a Swarm beside dockerd's, under the same manager, a
// dockerd that runs no tasks. LONGSHORE_DOCKER_DIR names dockerd's unpacked packages, and
// without it nothing is measured. It comes last: the agent serves the CRI no more.
func (b *bench) swarm(ctx context.Context) error {
	packages := os.Getenv(dockerd.DirEnv)
	if !b.ours() || packages == "" {
		return nil
	}
	s := &swarmBench{b: b, home: filepath.Join(machine.Dir(), "swarm"), all: map[string]samples{server.Longshore: {}, dockerWorker: {}}}
	err := s.start(ctx, packages)
	if err == nil {
		err = s.measure(ctx)
	}
	if err != nil {
		err = fmt.Errorf("swarm: %w%s", err, s.logs())
	}
	s.stop()
	return errors.Join(err, dockerd.RemoveHome(s.home))
}

// swarmBench is a Swarm of a manager and two workers.
type swarmBench struct {
	b       *bench
	home    string // of the manager and of dockerd's worker
	manager *dockerd.Daemon
	worker  *dockerd.Daemon
	nodes   []swarmNode
	all     map[string]samples
}

// swarmNode is a worker.
type swarmNode struct {
	name, id string
	// counts reports whether a process is the worker's, and not a task's.
	counts func(name, args string) bool
}

// workerIP is where dockerd's worker is, on the manager's bridge.
const workerIP = "10.99.0.2"

// start makes the Swarm.
func (s *swarmBench) start(ctx context.Context, packages string) error {
	if err := dockerd.Bridge(ctx, workerIP); err != nil {
		return err
	}
	var err error
	if s.manager, err = dockerd.StartManager(packages, filepath.Join(s.home, "manager")); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// A dockerd without a bridge removes the other's when it starts.
	if err := s.manager.Answers(starting); err != nil {
		return err
	}
	home := filepath.Join(s.home, "worker")
	s.worker, err = dockerd.Start(dockerd.Options{
		Packages: packages, Home: home, Wrap: s.b.server.Account.Command,
		Flags: []string{"--storage-driver", "overlay2", "--bip", "10.98.0.1/16", "--cgroup-parent", machine.Pods() + "/docker"},
	})
	if err != nil {
		return err
	}
	if err := s.worker.Answers(starting); err != nil {
		return err
	}
	swarm, err := s.manager.InitSwarm(ctx)
	if err != nil {
		return err
	}
	if _, err := s.worker.Docker(ctx, "swarm", "join", "--advertise-addr", workerIP, "--listen-addr", workerIP+":2377", "--token", swarm.Token, swarm.Address); err != nil {
		return err
	}
	theirs, err := s.worker.NodeID(ctx)
	if err != nil {
		return err
	}
	ours, err := s.join(ctx, swarm)
	if err != nil {
		return err
	}
	s.nodes = []swarmNode{
		{server.Longshore, ours, func(name, _ string) bool {
			return name == "longshore" || name == "longshore-keeper" || name == "longshore-nest"
		}},
		{dockerWorker, theirs, func(_, args string) bool { return strings.Contains(args, home) }}, // dockerd, containerd, shims
	}
	return s.until(ctx, "two ready workers", func() (bool, error) {
		var all []struct{ Status struct{ State string } }
		if err := s.manager.Get(ctx, "/nodes", &all); err != nil {
			return false, err
		}
		ready := 0
		for _, n := range all {
			if n.Status.State == "ready" {
				ready++
			}
		}
		return ready == 3, nil
	})
}

// join makes our agent a worker, and returns its id.
func (s *swarmBench) join(ctx context.Context, swarm dockerd.Swarm) (string, error) {
	// A worker of a Swarm serves no kubelet; dockerd's containerd does not either.
	if err := s.b.server.Extend(ctx, "[face.swarm]\nenabled = true\n[face.cri]\nenabled = false\n"); err != nil {
		return "", err
	}
	err := s.until(ctx, "our agent", func() (bool, error) {
		_, err := s.cli(ctx, "swarm", "status")
		return err == nil, nil
	})
	if err != nil {
		return "", err
	}
	if _, err := s.cli(ctx, "swarm", "join", swarm.Address, "--token", swarm.Token); err != nil {
		return "", err
	}
	out, err := s.cli(ctx, "swarm", "status", "--json")
	if err != nil {
		return "", err
	}
	var st struct{ Node string }
	return st.Node, errors.Join(json.Unmarshal(out, &st))
}

// cli runs a command of ours.
func (s *swarmBench) cli(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.b.server.Bin, "longshore"), args...)
	cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(s.b.server.State, "control.sock"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("longshore %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return out, err
}

// stop ends both dockerds.
func (s *swarmBench) stop() {
	for _, d := range []*dockerd.Daemon{s.worker, s.manager} {
		if d != nil {
			d.Stop()
		}
	}
}

func (s *swarmBench) logs() (text string) {
	for _, d := range []*dockerd.Daemon{s.manager, s.worker} {
		if d != nil {
			text += "\n" + d.LogTail()
		}
	}
	return text
}

// measure has both workers start and stop tasks, in turns.
func (s *swarmBench) measure(ctx context.Context) error {
	for _, n := range s.nodes {
		private := settled(ctx, func() int64 { return sum(machine.Private(n.counts)) })
		s.keep(n, swarmPrivate, float64(private)/1024)
	}
	for i := range s.nodes { // each pulls the image, and pays the extra cost of a first task
		if _, _, err := s.round(ctx, i, "warm", 1, func() {}); err != nil {
			return fmt.Errorf("%s: %w", s.nodes[i].name, err)
		}
	}
	// While the process in which our agent unpacks images lives, both share the program's pages,
	// and the agent seems smaller than alone.
	err := s.until(ctx, "the end of the image worker", func() (bool, error) {
		return len(machine.Memory(func(_, args string) bool { return strings.HasPrefix(args, "/proc/self/exe\x00") })) == 0, nil
	})
	if err != nil {
		return err
	}
	idle := make([]int64, len(s.nodes))
	for i, n := range s.nodes {
		idle[i] = settled(ctx, func() int64 { return sum(machine.Memory(n.counts)) })
	}
	for round := range swarmRounds {
		for turn := range s.nodes {
			i := (round + turn) % len(s.nodes)
			n := s.nodes[i]
			up, down, err := s.round(ctx, i, fmt.Sprintf("bench-%d", round), swarmTasks, func() {
				full := settled(ctx, func() int64 { return sum(machine.Memory(n.counts)) })
				s.keep(n, swarmMemory, float64(full-idle[i])/1024/swarmTasks)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
			s.keep(n, swarmStart, ms(up))
			s.keep(n, swarmStop, ms(down))
		}
	}
	fmt.Printf("%-30s %10s %10s %10s %10s\n", "workers of a Swarm", server.Longshore, dockerWorker, "ratio", "wanted")
	for _, l := range []comparison{
		{label: fmt.Sprintf("%d tasks, last RUNNING, ms", swarmTasks), name: swarmStart, at: 0.5, wanted: 1. / 3},
		{label: fmt.Sprintf("%d tasks, last gone, ms", swarmTasks), name: swarmStop, at: 0.5},
		{label: "memory beside a task, KB PSS", name: swarmMemory, at: 0.5, wanted: 1. / 10},
		{label: "idle worker, KB private", name: swarmPrivate, at: 0.5, wanted: 1. / 4},
	} {
		fmt.Println(l.format(s.all, []string{dockerWorker}))
	}
	return nil
}

// settled is the least of a size in bytes that falls for a while, because memory of a burst returns
// to the kernel in the seconds after it.
func settled(ctx context.Context, size func() int64) int64 {
	least := size()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for same := 0; same < 5; same++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return least
		}
		if now := size(); now < least-least/200 {
			least, same = now, 0
		}
	}
	return least
}

func (s *swarmBench) keep(n swarmNode, name string, v float64) {
	s.all[n.name][name] = append(s.all[n.name][name], v)
}

// swarmTask is a task as the manager's API tells it.
type swarmTask struct {
	UpdatedAt time.Time
	Status    struct{ State, Err string }
}

// round creates a service on one worker and removes it again. It returns how long each
// took as the manager has it: from the service's creation to the moment when it knew the
// last task to be RUNNING, and from the request to remove it to the moment when the worker
// had told the last task's end.
func (s *swarmBench) round(ctx context.Context, node int, name string, tasks int, full func()) (up, down time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	_, err = s.manager.Docker(ctx, "service", "create", "--detach", "--quiet", "--name", name, "--replicas", fmt.Sprint(tasks), "--restart-condition", "none",
		"--stop-signal", "KILL", "--constraint", "node.id=="+s.nodes[node].id, s.b.image, "/bin/sleep", "3600")
	if err != nil {
		return 0, 0, err
	}
	last, err := s.reach(ctx, name, tasks, "running")
	if err != nil {
		return 0, 0, err
	}
	var service struct{ CreatedAt time.Time }
	if err := s.manager.Get(ctx, "/services/"+name, &service); err != nil {
		return 0, 0, err
	}
	up = last.Sub(service.CreatedAt)
	full()
	// Scaled to none first: a service that is gone has no tasks to ask for.
	began := time.Now()
	if _, err := s.manager.Docker(ctx, "service", "scale", "--detach", name+"=0"); err != nil {
		return 0, 0, err
	}
	if down, err = s.gone(ctx, name, began); err != nil {
		return 0, 0, err
	}
	_, err = s.manager.Docker(ctx, "service", "rm", name)
	return up, down, err
}

// reach waits until so many tasks of a service are in a state, and returns when the
// manager learned that of the last.
func (s *swarmBench) reach(ctx context.Context, service string, n int, state string) (last time.Time, err error) {
	err = s.until(ctx, fmt.Sprintf("%d tasks %s", n, state), func() (bool, error) {
		var all []swarmTask
		if err := s.manager.Get(ctx, "/tasks"+dockerd.Filter("service", service), &all); err != nil {
			return false, err
		}
		there := 0
		for _, t := range all {
			switch t.Status.State {
			case state:
				there++
			case "failed", "rejected":
				return false, fmt.Errorf("a task is %s: %s", t.Status.State, t.Status.Err)
			}
			if t.UpdatedAt.After(last) {
				last = t.UpdatedAt
			}
		}
		return there == n, nil
	})
	return last, err
}

// gone waits until a service has no task any more.
func (s *swarmBench) gone(ctx context.Context, service string, began time.Time) (took time.Duration, err error) {
	err = s.until(ctx, "no task", func() (bool, error) {
		var all []swarmTask
		err := s.manager.Get(ctx, "/tasks"+dockerd.Filter("service", service), &all)
		took = time.Since(began)
		return len(all) == 0, err
	})
	return took, err
}

// until asks until the answer is yes.
func (s *swarmBench) until(ctx context.Context, what string, ok func() (bool, error)) error {
	return eventually(ctx, 20*time.Millisecond, what, ok)
}
