// Package trial starts a container as a face would, because looking at the node's parts cannot tell
// whether they work together. Start at Trials.
package trial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

// trialTime bounds a trial, and again its cleanup.
const trialTime = 30 * time.Second

// ownerDoctor owns the objects of a trial. No face ever sees them.
const ownerDoctor core.Owner = "doctor"

// Trials starts doctor's own containers.
type Trials struct {
	Engine  *engine.Engine
	Runtime string                 // the name of the runtime that starts them
	Program func() (string, error) // the path of the keeper's binary, which the containers run

	mu sync.Mutex // serializes trials: each begins by removing the objects of an interrupted one
}

// Finding starts a container, waits for its end and removes it.
func (t *Trials) Finding(ctx context.Context) control.Finding {
	began := time.Now()
	if err := t.run(ctx); err != nil {
		return doctor.Fail("start", "see the other findings, and the agent's log", "a test container could not be run: %v", err)
	}
	return doctor.OK("start", "a test container ran with %s and was removed, in %v", t.Runtime, time.Since(began).Round(time.Millisecond))
}

func (t *Trials) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.End(ctx); err != nil {
		return err
	}
	client := t.Engine.As(ownerDoctor)
	own := core.Namespace{Mode: core.PerContainer}
	sb, err := client.CreateSandbox(ctx, core.SandboxConfig{
		Runtime: t.Runtime, Hostname: "doctor", Namespaces: core.Namespaces{Net: own, IPC: own, UTS: own, PID: own, Cgroup: own},
	})
	if err != nil {
		return err
	}
	defer func() {
		clean, stop := context.WithTimeout(context.WithoutCancel(ctx), trialTime)
		defer stop()
		err = errors.Join(err, t.End(clean))
	}()
	program, err := t.Program()
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

// End removes the objects of trials, also those of an agent that died during one.
func (t *Trials) End(ctx context.Context) error {
	client := t.Engine.As(ownerDoctor)
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
