package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

// trialTime bounds a trial, and again its cleanup.
const trialTime = 30 * time.Second

// ownerDoctor owns the objects of a trial. No face ever sees them.
const ownerDoctor core.Owner = "doctor"

// trials starts doctor's own containers.
type trials struct{ n *node }

// finding starts a container as a face would, waits for its end and removes it, because looking
// at the node's parts cannot tell whether they work together.
func (t trials) finding(ctx context.Context) control.Finding {
	began := time.Now()
	if err := t.run(ctx); err != nil {
		return fail("start", "see the other findings, and the agent's log", "a test container could not be run: %v", err)
	}
	return ok("start", "a test container ran with %s and was removed, in %v", t.n.runtimes.chosen, time.Since(began).Round(time.Millisecond))
}

func (t trials) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	// One trial at a time: each begins by removing the objects of an interrupted one.
	t.n.trialMu.Lock()
	defer t.n.trialMu.Unlock()
	if err := t.end(ctx); err != nil {
		return err
	}
	client := t.n.engine.As(ownerDoctor)
	own := core.Namespace{Mode: core.PerContainer}
	sb, err := client.CreateSandbox(ctx, core.SandboxConfig{
		Runtime: t.n.runtimes.chosen, Hostname: "doctor", Namespaces: core.Namespaces{Net: own, IPC: own, UTS: own, PID: own, Cgroup: own},
	})
	if err != nil {
		return err
	}
	defer func() {
		clean, stop := context.WithTimeout(context.WithoutCancel(ctx), trialTime)
		defer stop()
		err = errors.Join(err, t.end(clean))
	}()
	program, err := t.n.keeperBinary()
	if err != nil {
		return err
	}
	c, err := client.CreateContainer(ctx, core.ContainerConfig{
		Sandbox: sb.ID,
		Root: core.Root{ReadOnly: true, Mounts: []core.Mount{{
			Type: "tmpfs", Source: "doctor", Options: []string{"nosuid", "nodev", "mode=755", "size=64k"},
		}}},
		Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) { return trialSpec(program), nil, nil },
	})
	if err != nil {
		return err
	}
	if err := client.StartContainer(ctx, c.ID); err != nil {
		return err
	}
	autopsy, err := client.Wait(ctx, core.Ref{Container: c.ID})
	if err != nil {
		return err
	}
	if autopsy.Exit.Code != 0 || autopsy.Exit.Signal != 0 || autopsy.Exit.Lost {
		return fmt.Errorf("its program did not end as expected: %s", autopsy.Verdict)
	}
	return nil
}

// end removes the objects of trials, also those of an agent that died during one.
func (t trials) end(ctx context.Context) error {
	client := t.n.engine.As(ownerDoctor)
	list, err := client.Sandboxes(ctx, core.Filter{})
	for _, sb := range list {
		err = errors.Join(err, client.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: core.StopRequest{Call: "longshore doctor"}}))
	}
	return err
}

// trialSpec is a usual, unprivileged container that runs the keeper's binary.
func trialSpec(program string) *specs.Spec {
	const place = "/probe"
	s := ocispec.New()
	s.Process.Args = []string{place, "probe"}
	s.Mounts = append(s.Mounts, specs.Mount{Destination: place, Type: "bind", Source: program, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	return s
}
