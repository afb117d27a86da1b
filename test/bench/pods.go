package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
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
	server *server.Server // nil for one that runs already
	logs   string         // a directory of this run alone: an old log looks like a program that is ready

	mu     sync.Mutex // guards serial
	serial int

	started time.Duration // the median of a pod's start
	samples samples
}

// ours reports whether the server is our own agent, run by us.
func (b *bench) ours() bool { return b.server != nil && b.server.Bin != "" }

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

// program is the program of each pod: it prints a line when it handles signals. The kernel drops
// earlier signals to the first process of a pid namespace.
var program = []string{"/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 3600 & wait; done"}

// Kubelet's own masked and read-only paths.
var (
	masked = []string{
		"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// up starts a pod of the program that waits.
func (b *bench) up(ctx context.Context) (*pod, error) { return b.upWith(ctx, program) }

// upWith starts a pod as kubelet does: own network, pid namespace per container,
// limits on memory and CPU, a cgroup parent; every server gets the same.
func (b *bench) upWith(ctx context.Context, command []string) (*pod, error) {
	name := b.name()
	logs := filepath.Join(b.logs, name)
	namespaces := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	seccomp := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: name},
		Hostname: name, LogDirectory: logs,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: namespaces, Seccomp: seccomp,
		}},
	}
	if b.server != nil {
		sandbox.Linux.CgroupParent = machine.Pods()
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
		Image:    &runtimeapi.ImageSpec{Image: b.imageID, UserSpecifiedImage: b.image},
		Command:  command,
		LogPath:  "c.log",
		Linux:    limited(namespaces, seccomp),
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

// limited is kubelet's request for a container with limits.
func limited(namespaces *runtimeapi.NamespaceOption, seccomp *runtimeapi.SecurityProfile) *runtimeapi.LinuxContainerConfig {
	return &runtimeapi.LinuxContainerConfig{
		Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuShares: 102, CpuPeriod: 100000},
		SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: namespaces, Seccomp: seccomp, MaskedPaths: masked, ReadonlyPaths: readonly,
		},
	}
}

// ready waits until the program has said so.
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
