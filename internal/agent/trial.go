package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

// trialTime bounds a trial, and again what takes it away.
const trialTime = 30 * time.Second

// ownerDoctor owns what a trial makes, which no face ever sees.
const ownerDoctor core.Owner = "doctor"

// trials are doctor's own containers.
type trials struct{ n *node }

// finding starts a container as a face would, waits for its end and removes
// it: what no look at the node's parts can tell is whether they work together.
func (t trials) finding(ctx context.Context) control.Finding {
	began := time.Now()
	if err := t.run(ctx); err != nil {
		return fail("start", "see the other findings, and the agent's log", "a container of our own could not be run: %v", err)
	}
	return ok("start", "a container of our own ran by %s and was removed, in %v", t.n.runtimes.chosen, time.Since(began).Round(time.Millisecond))
}

func (t trials) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	// One at a time: each begins by taking away what another left half-way.
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
		return fmt.Errorf("its program ended otherwise than it should: %s", autopsy.Verdict)
	}
	return nil
}

// end removes what trials have made. An agent that ended over one has left
// it behind.
func (t trials) end(ctx context.Context) error {
	client := t.n.engine.As(ownerDoctor)
	list, err := client.Sandboxes(ctx, core.Filter{})
	for _, sb := range list {
		err = errors.Join(err, client.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: core.StopRequest{Call: "longshore doctor"}}))
	}
	return err
}

// trialSpec is a usual, unprivileged container that runs our small binary.
func trialSpec(program string) *specs.Spec {
	const place = "/probe"
	s := ocispec.New()
	s.Process.Args = []string{place, "probe"}
	s.Mounts = append(s.Mounts, specs.Mount{Destination: place, Type: "bind", Source: program, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	return s
}

// deviceFinding looks at the devices of the host that its own programs and those
// of containers count on.
func deviceFinding() control.Finding {
	for _, d := range []struct {
		path         string
		major, minor uint32
	}{{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}} {
		var st unix.Stat_t
		err := unix.Stat(d.path, &st)
		switch {
		case err != nil:
		case st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(d.major, d.minor):
			err = errors.New("it is something else")
		case st.Mode&0o666 != 0o666:
			err = fmt.Errorf("its mode is %04o", st.Mode&0o7777)
		}
		if err != nil {
			hint := fmt.Sprintf("make it anew: rm -f %s; mknod -m 666 %s c %d %d", d.path, d.path, d.major, d.minor)
			return fail("devices", hint, "%s should be the device c %d:%d with mode 0666: %v", d.path, d.major, d.minor, err)
		}
	}
	return ok("devices", "/dev/null and its kin are as they should be")
}
