package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

const (
	statusTasks  = 500
	statusRounds = 5
	statusImage  = "busybox:latest"
)

// The names of the measurements of the protocol's cost.
const (
	statusCPU  = "CPU per status"
	statusSent = "statuses per task"
)

// swarmStatuses measures the cost of a status for our worker and swarmkit's, with so many tasks
// assigned at once: both without containers, ours over the engine's fakes, swarmkit's with an
// executor that does nothing. Each keeps its tasks on disk. SWARMKIT_AGENT names the program of
// test/bench/swarmkit; without it only ours is measured.
func (b *bench) swarmStatuses(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	workers := map[string][]string{server.Longshore: {self}}
	names := []string{server.Longshore}
	if program := os.Getenv("SWARMKIT_AGENT"); program != "" {
		workers[swarmkit], names = []string{program}, append(names, swarmkit)
	}
	all := map[string]samples{server.Longshore: {}, swarmkit: {}}
	for round := range statusRounds {
		for turn := range names {
			name := names[(round+turn)%len(names)]
			if err := statusRound(ctx, workers[name], all[name]); err != nil {
				return fmt.Errorf("statuses of %s: %w", name, err)
			}
		}
	}
	fmt.Printf("%-30s %10s %10s %10s %10s\n", fmt.Sprintf("%d tasks assigned at once", statusTasks), server.Longshore, swarmkit, "ratio", "wanted")
	for _, l := range []comparison{
		{label: "CPU per status, ms", name: statusCPU, at: 0.5, wanted: 1},
		{label: "  sent, per task", name: statusSent, at: 0.5, note: "the newest of each task goes with the next message"},
	} {
		text := l.format(all, []string{swarmkit})
		if text == "" {
			text = fmt.Sprintf("%-30s %10.2f", l.label, all[server.Longshore].at(l.name, l.at))
		}
		fmt.Println(text)
	}
	return nil
}

// statusesOf is how many a task has from ASSIGNED to RUNNING: ACCEPTED, PREPARING, READY, STARTING,
// RUNNING. Not all are sent, if the next comes first.
const statusesOf = 5

// statusRound assigns the tasks to a worker of its own, and measures its CPU time until the last is
// RUNNING.
func statusRound(ctx context.Context, argv []string, into samples) (err error) {
	tb, end := enginetest.ExampleTB()
	defer end()
	m := swarmtest.New(tb)
	m.Period = time.Second
	dir, err := os.MkdirTemp(machine.Dir(), "longshore-bench-worker-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, argv[0], "-addr", m.Addr, "-token", m.Token, "-dir", dir)
	log, err := os.Create(filepath.Join(machine.Dir(), "worker.log"))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), workerEnv+"=1", "GRPC_ENFORCE_ALPN_ENABLED=false") // the manager has a renewed certificate
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			said, _ := os.ReadFile(log.Name())
			err = fmt.Errorf("%w\n%s", err, said[max(0, len(said)-4000):])
		}
		_ = log.Close()
	}()
	// The first pays for the session and for other one-time work.
	if err := assign(ctx, m, "first", 1); err != nil {
		return err
	}
	m.Forget()
	before := machine.ProcessCPU(cmd.Process.Pid)
	if err := assign(ctx, m, "task", statusTasks); err != nil {
		return err
	}
	used := ms(machine.ProcessCPU(cmd.Process.Pid) - before)
	into[statusCPU] = append(into[statusCPU], used/statusTasks/statusesOf)
	into[statusSent] = append(into[statusSent], float64(len(m.Statuses("")))/statusTasks)
	return nil
}

// assign assigns tasks in one message, and waits until all are reported as RUNNING.
func assign(ctx context.Context, m *swarmtest.Manager, name string, n int) error {
	m.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
		for i := range n {
			id := fmt.Sprintf("%s%d", name, i)
			tasks[id] = swarmtest.Task(id, statusImage, "/bin/sleep", "3600")
		}
	})
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return eventually(ctx, 10*time.Millisecond, "all tasks RUNNING", func() (bool, error) {
		running := 0
		for _, s := range m.Statuses("") {
			switch s.GetState() {
			case swarmv1.TaskState_RUNNING:
				running++
			case swarmv1.TaskState_FAILED, swarmv1.TaskState_REJECTED:
				return false, errors.New(s.GetErr())
			default:
			}
		}
		return running == n, nil
	})
}

// workerEnv makes this program our worker over the engine's fakes.
const workerEnv = "LONGSHORE_BENCH_SWARM_WORKER"

// beWorker is that worker, where this process is to be one: it ends with a signal. The
// arguments are those of test/bench/swarmkit.
func beWorker() {
	if os.Getenv(workerEnv) == "" {
		return
	}
	if err := worker(os.Args[2], os.Args[4], os.Args[6]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func worker(addr, token, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store, err := bolt.Open(bolt.Options{State: filepath.Join(dir, "state"), Root: filepath.Join(dir, "root")})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	tb, end := enginetest.ExampleTB()
	defer end()
	node := enginetest.Fakes(tb)
	node.Images.Offer(statusImage, imagespec.ImageConfig{}, map[string]string{"bin/sleep": ""})
	node.Start()
	f, err := swarm.New(swarm.Options{
		Deps: face.Deps{Engine: node.As(core.OwnerSwarm), Logger: slog.New(slog.DiscardHandler), KV: store.Scope(core.OwnerSwarm, true)},
		Root: filepath.Join(dir, "swarm"), State: filepath.Join(dir, "files"), MountFiles: func(string) error { return nil },
	})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	if _, err := f.Join(ctx, swarm.JoinRequest{Addr: addr, Token: token}); err != nil {
		return err
	}
	return <-served
}
