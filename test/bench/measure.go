package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type client struct {
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
}

func dial(socket string) (*client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.2, MaxDelay: 10 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, err
	}
	return &client{runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)}, nil
}

type bench struct {
	options
	client *client
	node   *node  // nil for a foreign server
	logs   string // a directory of this run alone: an old log looks like a program that is ready
	serial int
	mu     sync.Mutex

	started time.Duration // the middle of what the start of a pod took
}

// pod is one started pod and how long its stages took.
type pod struct {
	sandbox, container, log  string
	run, create, start, gone time.Duration
}

func (p *pod) total() time.Duration { return p.run + p.create + p.start }

func (b *bench) name() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	return fmt.Sprintf("bench-%d-%d", os.Getpid(), b.serial)
}

// up starts a pod as kubelet does: own network, pid namespace per container,
// limits on memory and CPU.
func (b *bench) up(ctx context.Context) (*pod, error) {
	name := b.name()
	logs := filepath.Join(b.logs, name)
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name},
		Hostname: name, LogDirectory: logs,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	p := &pod{log: filepath.Join(logs, "c.log")}
	t := time.Now()
	s, err := b.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: b.runtime})
	if err != nil {
		return nil, fmt.Errorf("RunPodSandbox: %w", err)
	}
	p.sandbox, p.run = s.GetPodSandboxId(), time.Since(t)
	t = time.Now()
	c, err := b.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: sandbox, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
		Image:    &runtimeapi.ImageSpec{Image: b.image},
		Command:  []string{"/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 3600 & wait; done"},
		LogPath:  "c.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuShares: 102, CpuPeriod: 100000},
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("CreateContainer: %w", err)
	}
	p.container, p.create = c.GetContainerId(), time.Since(t)
	t = time.Now()
	if _, err := b.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container}); err != nil {
		return nil, fmt.Errorf("StartContainer: %w", err)
	}
	p.start = time.Since(t)
	return p, nil
}

// ready waits until the program has said that it handles signals: before that
// the kernel drops what is sent to the first process of a pid namespace.
func (p *pod) ready(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if st, err := os.Stat(p.log); err == nil && st.Size() > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no output in %s: %w", p.log, ctx.Err())
		}
	}
}

// down stops and removes a pod as kubelet does.
func (b *bench) down(ctx context.Context, p *pod) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	t := time.Now()
	if _, err := b.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: p.container, Timeout: 10}); err != nil {
		return fmt.Errorf("StopContainer: %w", err)
	}
	if _, err := b.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return fmt.Errorf("StopPodSandbox: %w", err)
	}
	if _, err := b.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		return fmt.Errorf("RemovePodSandbox: %w", err)
	}
	p.gone = time.Since(t)
	return nil
}

func (b *bench) all(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"start", b.sequential}, {"executions", b.executions}, {"exec", b.execSync}, {"burst", b.crowd}, {"bare", b.bare}, {"flat", b.flat}, {"floor", b.floor}} {
		if b.steps != "" && !slices.Contains(strings.Split(b.steps, ","), step.name) {
			continue
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) sequential(ctx context.Context) error {
	if p, err := b.up(ctx); err != nil {
		return err
	} else if err := b.down(ctx, p); err != nil { // the first one pays for caches
		return err
	}
	var total, run, create, start, gone []time.Duration
	before, err := b.node.stages(ctx)
	if err != nil {
		return err
	}
	var used time.Duration
	agent, keeper, all := processCPU("longshore"), processCPU("longshore-keeper"), machineCPU()
	for range b.pods {
		cpu := machineCPU()
		p, err := b.up(ctx)
		if err != nil {
			return err
		}
		used += machineCPU() - cpu
		if err := b.down(ctx, p); err != nil {
			return err
		}
		total, run, create, start, gone = append(total, p.total()), append(run, p.run), append(create, p.create), append(start, p.start), append(gone, p.gone)
	}
	agent, keeper, all = processCPU("longshore")-agent, processCPU("longshore-keeper")-keeper, machineCPU()-all
	row("pod start", total)
	b.started = middle(total)
	row("  RunPodSandbox", run)
	row("  CreateContainer", create)
	row("  StartContainer", start)
	row("stop + remove", gone)
	per := func(d time.Duration) float64 { return ms(d) / float64(b.pods) }
	fmt.Printf("%-28s %8.1f ms, the whole machine's\n", "CPU per pod start", per(used))
	fmt.Printf("%-28s %8.1f ms, the whole machine's\n", "CPU per pod, start to gone", per(all))
	if b.node != nil {
		fmt.Printf("%-28s %8.1f ms agent, %.1f ms keeper\n", "  of it", per(agent), per(keeper))
		after, err := b.node.stages(ctx)
		if err != nil {
			return err
		}
		printStages(before, after)
	}
	return nil
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
	row("ExecSync /bin/true", took)
	return b.down(ctx, p)
}

// crowd starts the burst, looks at the node with all of it idle, kills the agent
// if it is ours, and takes the burst down again.
func (b *bench) crowd(ctx context.Context) error {
	empty := pss(b.pss)
	pods := make([]*pod, b.burst)
	t := time.Now()
	err := b.each(ctx, b.burst, func(ctx context.Context, i int) (err error) {
		pods[i], err = b.up(ctx)
		return err
	})
	if err != nil {
		return err
	}
	wall := time.Since(t)
	var each []time.Duration
	for _, p := range pods {
		each = append(each, p.total())
	}
	fmt.Printf("%-28s %8.1f pods/s\n", fmt.Sprintf("%d pods, %d workers", b.burst, b.workers), float64(b.burst)/wall.Seconds())
	row("  pod start in the burst", each)
	full := pss(b.pss)
	for _, name := range strings.Split(b.pss, ",") {
		fmt.Printf("%-28s %8d KB empty, %d KB with %d pods\n", "PSS "+name, empty[name]/1024, full[name]/1024, b.burst)
	}
	fmt.Printf("%-28s %8.1f KB\n", "marginal PSS per idle pod", float64(sum(full)-sum(empty))/1024/float64(b.burst))
	if err := b.lists(ctx); err != nil {
		return err
	}
	if b.node != nil {
		if err := b.recovery(ctx); err != nil {
			return err
		}
	}
	t = time.Now()
	if err := b.each(ctx, b.burst, func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) }); err != nil {
		return err
	}
	fmt.Printf("%-28s %8.1f pods/s\n", "teardown of them", float64(b.burst)/time.Since(t).Seconds())
	return nil
}

// flat takes the start of pods beside many idle ones, which should cost what it
// costs beside none.
func (b *bench) flat(ctx context.Context) error {
	measure := func() ([]time.Duration, error) {
		var took []time.Duration
		for range b.pods {
			p, err := b.up(ctx)
			if err != nil {
				return nil, err
			}
			took = append(took, p.total())
			if err := b.down(ctx, p); err != nil {
				return nil, err
			}
		}
		return took, nil
	}
	alone, err := measure()
	if err != nil {
		return err
	}
	row("pod start beside none", alone)
	pods := make([]*pod, 5*b.burst)
	if err := b.each(ctx, len(pods), func(ctx context.Context, i int) (err error) {
		pods[i], err = b.up(ctx)
		return err
	}); err != nil {
		return err
	}
	if b.node != nil {
		cpu, t := processCPU("longshore"), time.Now()
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		fmt.Printf("%-28s %8.2f %% of a core, with %d pods\n", "idle agent", 100*float64(processCPU("longshore")-cpu)/float64(time.Since(t)), len(pods))
	}
	before, err := b.node.stages(ctx)
	if err != nil {
		return err
	}
	beside, err := measure()
	if err != nil {
		return err
	}
	after, err := b.node.stages(ctx)
	if err != nil {
		return err
	}
	printStages(before, after)
	row(fmt.Sprintf("pod start beside %d", len(pods)), beside)
	fmt.Printf("%-28s %8.2f (p50)\n", "  ratio", float64(middle(beside))/float64(middle(alone)))
	return b.each(ctx, len(pods), func(ctx context.Context, i int) error { return b.down(ctx, pods[i]) })
}

func (b *bench) lists(ctx context.Context) error {
	calls := []struct {
		name string
		call func() (int, error)
	}{
		{"ListContainers", func() (int, error) {
			r, err := b.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return len(r.GetContainers()), err
		}},
		{"ListPodSandbox", func() (int, error) {
			r, err := b.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return len(r.GetItems()), err
		}},
		{"ListContainerStats", func() (int, error) {
			r, err := b.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return len(r.GetStats()), err
		}},
		{"ListPodSandboxStats", func() (int, error) {
			r, err := b.client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return len(r.GetStats()), err
		}},
		{"ListPodSandboxMetrics", func() (int, error) {
			r, err := b.client.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
			return len(r.GetPodMetrics()), err
		}},
	}
	for _, c := range calls {
		var took []time.Duration
		for range 20 {
			t := time.Now()
			n, err := c.call()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if n < b.burst {
				return fmt.Errorf("%s: %d objects, want %d", c.name, n, b.burst)
			}
			took = append(took, time.Since(t))
		}
		row(fmt.Sprintf("%s of %d", c.name, b.burst), took)
	}
	return nil
}

// recovery takes the time from a SIGKILL to a list that shows every container
// running.
func (b *bench) recovery(ctx context.Context) error {
	var took []time.Duration
	for range 5 {
		t := time.Now()
		if err := b.node.restart(ctx); err != nil {
			return err
		}
		for {
			r, err := b.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
				State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			}}, grpc.WaitForReady(true))
			if err == nil && len(r.GetContainers()) == b.burst {
				break
			}
			if ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			if time.Since(t) > time.Minute {
				return fmt.Errorf("recovery: %d of %d containers after a minute: %w", len(r.GetContainers()), b.burst, err)
			}
		}
		took = append(took, time.Since(t))
	}
	row("SIGKILL to a right list", took)
	return nil
}

// each calls f for n pods from the workers, and returns the first error.
func (b *bench) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range b.workers {
		wg.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	func() {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	wg.Wait()
	return context.Cause(ctx)
}

func row(name string, d []time.Duration) {
	slices.Sort(d)
	at := func(q float64) float64 { return ms(d[int(math.Ceil(q*float64(len(d))))-1]) }
	fmt.Printf("%-28s %8.2f ms p50 %8.2f p99 %8.2f min\n", name, at(0.5), at(0.99), ms(d[0]))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// machineCPU is the CPU time that the whole machine has used.
func machineCPU() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy time.Duration
	for i, f := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseInt(f, 10, 64)
		if i != 3 && i != 4 && i < 8 { // not idle, not iowait, guests are in user already
			busy += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return busy
}

// pss sums the proportional set size, in bytes, of the processes of each named
// program.
func pss(names string) map[string]int64 {
	sums := map[string]int64{}
	for _, n := range strings.Split(names, ",") {
		sums[n] = 0
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue
		}
		argv0, _, _ := strings.Cut(string(cmdline), "\x00")
		name := filepath.Base(argv0)
		if _, ok := sums[name]; !ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d, "smaps_rollup"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				sums[name] += kb * 1024
			}
		}
	}
	return sums
}

func sum(m map[string]int64) (total int64) {
	for _, v := range m {
		total += v
	}
	return total
}
