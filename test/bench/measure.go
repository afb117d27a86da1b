package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/bench/machine"
)

func (b *bench) all(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
		last bool // flat does it too, and it leaves its pods
	}{
		{name: "start", do: b.sequential},
		{name: "executions", do: b.executions},
		{name: "exec", do: b.execSync},
		{name: "log", do: b.logRecords},
		{name: "burst", do: b.crowd},
		{name: "durable", do: b.durable},
		{name: "userns", do: b.userns},
		{name: "traces", do: b.traces},
		{name: "bare", do: b.bare},
		{name: "flat", do: b.flat},
		{name: "floor", do: b.floor},
		{name: "mesos", do: b.mesos},
		{name: "nomad", do: b.nomad},
		{name: "grants", do: func(ctx context.Context) error { return ofGrants(ctx, b) }},
		{name: "guest", do: func(ctx context.Context) error { return ofGuest(ctx, b) }},
		{name: "sleep", do: func(ctx context.Context) error { return ofSleep(ctx, b) }},
		{name: "statuses", do: b.swarmStatuses},
		{name: "many", do: b.many, last: true},
		{name: "loops", do: b.loops, last: true},
		{name: "cli", do: func(ctx context.Context) error { return ofCLI(ctx, b) }, last: true},
		{name: "docker", do: b.docker, last: true},
		{name: "swarm", do: b.swarm},
	} {
		if named := slices.Contains(strings.Split(b.steps, ","), step.name); !named && (b.steps != "" || step.last) {
			continue
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// warmUp is how many pods pay for caches before anything is measured.
const warmUp = 3

func (b *bench) sequential(ctx context.Context) error {
	for range warmUp {
		if _, err := b.cycle(ctx, func() {}); err != nil {
			return err
		}
	}
	before, err := b.stages(ctx)
	if err != nil {
		return err
	}
	var total, run, create, start, both, gone []time.Duration
	var started time.Duration
	agent, keeper, all, life := machine.ProgramCPU("longshore"), pairCPU(), machine.CPU(), b.charged()
	for range b.pods {
		used := b.charged()
		p, err := b.cycle(ctx, func() { started += b.charged() - used })
		if err != nil {
			return err
		}
		total, run, create, start, gone = append(total, p.total()), append(run, p.run), append(create, p.create), append(start, p.start), append(gone, p.gone)
		both = append(both, p.create+p.start)
	}
	agent, keeper, all, life = machine.ProgramCPU("longshore")-agent, pairCPU()-keeper, machine.CPU()-all, b.charged()-life
	b.row(podStart, "pod start", total)
	b.started = middle(total)
	b.row(runSandbox, "  RunPodSandbox", run)
	b.row(createCont, "  CreateContainer", create)
	b.row(startCont, "  StartContainer", start)
	b.row(createStart, "  both of these", both)
	b.row(stopRemove, "stop + remove", gone)
	per := func(d time.Duration) float64 { return ms(d) / float64(b.pods) }
	fmt.Printf("%-28s %8.1f ms, the whole machine's\n", "CPU per pod, start to gone", per(all))
	if b.server == nil {
		return nil
	}
	ownStart, ownLife, err := b.server.Account.OwnCost(ctx, b.pods, append([]string{"/bin/busybox", "sh"}, program[1:]...))
	if err != nil {
		return fmt.Errorf("the program alone: %w", err)
	}
	b.value(cpuStart, "CPU per pod start", per(started)-ms(ownStart), "ms on the server's account, the program's own %.2f ms taken off", ms(ownStart))
	b.value(cpuLife, "CPU per pod, start to gone", per(life)-ms(ownLife), "ms on the server's account, the program's own %.2f ms taken off", ms(ownLife))
	if !b.ours() {
		return nil
	}
	fmt.Printf("%-28s %8.1f ms agent, %.1f ms keeper\n", "  of it", per(agent), per(keeper))
	after, err := b.stages(ctx)
	printStages(since(before, after), nil)
	return err
}

// charged is the CPU time on the server's account so far.
func (b *bench) charged() time.Duration {
	if b.server == nil {
		return 0
	}
	used, err := b.server.Account.Used()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	return used
}

// cycle starts a pod, calls running when its program is, and takes it down.
func (b *bench) cycle(ctx context.Context, running func()) (*pod, error) {
	p, err := b.up(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	running()
	return p, b.down(ctx, p)
}

func (b *bench) execSync(ctx context.Context) error {
	p, err := b.up(ctx)
	if err != nil {
		return err
	}
	var took []time.Duration
	for range 2 * b.pods {
		t := time.Now()
		r, err := b.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"/bin/true"}, Timeout: 10})
		if err != nil {
			return fmt.Errorf("ExecSync: %w", err)
		}
		if r.GetExitCode() != 0 {
			return fmt.Errorf("ExecSync: exit code %d", r.GetExitCode())
		}
		took = append(took, time.Since(t))
	}
	b.row(execSync, "ExecSync /bin/true", took)
	return b.down(ctx, p)
}

// eventually asks again and again until the answer is yes.
func eventually(ctx context.Context, every time.Duration, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("there is never %s: %w", what, ctx.Err())
		}
	}
}

// pairCPU is the processor time of keeper and nest.
func pairCPU() time.Duration {
	return machine.ProgramCPU("longshore-keeper") + machine.ProgramCPU("longshore-nest")
}
