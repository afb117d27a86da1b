package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/test/bench/mesosapi"
)

// mesosBench measures the face for Mesos, by its own protocol.
type mesosBench struct {
	b   *bench
	api *mesosapi.Client
}

// mesos measures our agent as Mesos' clients see it. It restarts it with that face, which the other
// steps do not need.
func (b *bench) mesos(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	if err := b.server.Extend(ctx, "[face.mesos]\nenabled = true\n"); err != nil {
		return err
	}
	m := mesosBench{b, mesosapi.New(filepath.Join(b.server.State, "mesos.sock"))}
	defer m.api.Close()
	if err := m.served(ctx); err != nil {
		return err
	}
	for _, do := range []func(context.Context) error{m.roundTrips, m.sessions, m.crowd} {
		if err := do(ctx); err != nil {
			return fmt.Errorf("mesos: %w", err)
		}
	}
	return nil
}

// served returns when the face answers.
func (m mesosBench) served(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_GET_HEALTH.Enum()})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

func containerID(parent *mesosv1.ContainerID, name string) *mesosv1.ContainerID {
	return &mesosv1.ContainerID{Value: &name, Parent: parent}
}

// withoutShell is a command line without a shell.
func withoutShell(args ...string) *mesosv1.CommandInfo {
	return &mesosv1.CommandInfo{Shell: proto.Bool(false), Value: &args[0], Arguments: args}
}

func (m mesosBench) launch(ctx context.Context, id *mesosv1.ContainerID, args ...string) error {
	_, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_LAUNCH_CONTAINER.Enum(), LaunchContainer: &mesosagent.Call_LaunchContainer{
		ContainerId: id, Command: withoutShell(args...),
		Container: &mesosv1.ContainerInfo{Type: mesosv1.ContainerInfo_MESOS.Enum(), Mesos: &mesosv1.ContainerInfo_MesosInfo{
			Image: &mesosv1.Image{Type: mesosv1.Image_DOCKER.Enum(), Docker: &mesosv1.Image_Docker{Name: &m.b.image}},
		}},
	}})
	return err
}

// wait returns the container's status, as wait(2) has it.
func (m mesosBench) wait(ctx context.Context, id *mesosv1.ContainerID) (int32, error) {
	r, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_WAIT_CONTAINER.Enum(), WaitContainer: &mesosagent.Call_WaitContainer{ContainerId: id}})
	return r.GetWaitContainer().GetExitStatus(), err
}

func (m mesosBench) remove(ctx context.Context, id *mesosv1.ContainerID) error {
	_, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_REMOVE_CONTAINER.Enum(), RemoveContainer: &mesosagent.Call_RemoveContainer{ContainerId: id}})
	return err
}

// end kills a container and removes it.
func (m mesosBench) end(ctx context.Context, id *mesosv1.ContainerID) error {
	if _, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_KILL_CONTAINER.Enum(), KillContainer: &mesosagent.Call_KillContainer{ContainerId: id}}); err != nil {
		return err
	}
	if _, err := m.wait(ctx, id); err != nil {
		return err
	}
	return m.remove(ctx, id)
}

// roundTrips take from a launch to the answer that says how it ended.
func (m mesosBench) roundTrips(ctx context.Context) error {
	root := containerID(nil, m.b.name())
	if err := m.launch(ctx, root, "/bin/sleep", "3600"); err != nil {
		return err
	}
	for _, of := range []struct {
		label  string
		parent *mesosv1.ContainerID
	}{{"LAUNCH to WAIT", nil}, {"  of a nested container", root}} {
		var took []time.Duration
		for i := range warmUp + m.b.pods {
			id := containerID(of.parent, m.b.name())
			t := time.Now()
			if err := m.launch(ctx, id, "/bin/true"); err != nil {
				return err
			}
			status, err := m.wait(ctx, id)
			if err == nil && status != 0 {
				err = fmt.Errorf("/bin/true ended with status %d", status)
			}
			if err != nil {
				return err
			}
			if i >= warmUp {
				took = append(took, time.Since(t))
			}
			if err := m.remove(ctx, id); err != nil {
				return err
			}
		}
		m.b.row("", of.label, took)
	}
	return m.end(ctx, root)
}

func (m mesosBench) session(ctx context.Context, id *mesosv1.ContainerID, args ...string) (*mesosapi.Output, error) {
	return m.api.Open(ctx, &mesosagent.Call{Type: mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION.Enum(), LaunchNestedContainerSession: &mesosagent.Call_LaunchNestedContainerSession{
		ContainerId: id, Command: withoutShell(args...),
	}})
}

// sessions measures those in one container.
func (m mesosBench) sessions(ctx context.Context) error {
	root := containerID(nil, m.b.name())
	if err := m.launch(ctx, root, "/bin/sleep", "3600"); err != nil {
		return err
	}
	for _, do := range []func(context.Context, *mesosv1.ContainerID) error{m.echo, m.stream, m.dropped} {
		if err := do(ctx, root); err != nil {
			return err
		}
	}
	return m.end(ctx, root)
}

// echo takes a line to a session's program and back.
func (m mesosBench) echo(ctx context.Context, root *mesosv1.ContainerID) error {
	id := containerID(root, m.b.name())
	out, err := m.session(ctx, id, "/bin/cat")
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := m.api.Attach(ctx, id)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range 4 * m.b.pods {
		line := fmt.Sprintf("line %d\n", i)
		t := time.Now()
		if err := in.Send([]byte(line)); err != nil {
			return err
		}
		if err := out.Until(line); err != nil {
			return err
		}
		took = append(took, time.Since(t))
	}
	m.b.row("", "session echo", took)
	if err := in.End(); err != nil {
		return err
	}
	if _, err := out.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the session's end: %w", err)
	}
	return in.Close()
}

// streamed is how much goes through one stream.
const streamed = 100 << 20

// stream takes much output through a session's connection.
func (m mesosBench) stream(ctx context.Context, root *mesosv1.ContainerID) error {
	out, err := m.session(ctx, containerID(root, m.b.name()), "/bin/sh", "-c", fmt.Sprintf("echo ready; head -c %d /dev/zero", streamed))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Until("ready\n"); err != nil {
		return err
	}
	t, got := time.Now(), 0
	for {
		data, err := out.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		got += len(data)
	}
	if got > streamed || got < streamed-len("ready\n")-64<<10 { // some may have come with the first line
		return fmt.Errorf("%d bytes came of %d", got, streamed)
	}
	m.b.value("", "attached stream", float64(got)/1e6/time.Since(t).Seconds(), "MB/s, of %d MiB", streamed>>20)
	return nil
}

// soon is how soon a session must end after its client.
const soon = time.Second

// dropped takes from the end of a session's connection to its container's.
func (m mesosBench) dropped(ctx context.Context, root *mesosv1.ContainerID) error {
	var took []time.Duration
	for range m.b.pods {
		id := containerID(root, m.b.name())
		out, err := m.session(ctx, id, "/bin/sh", "-c", "sleep 3600 & echo ready; wait")
		if err != nil {
			return err
		}
		if err := out.Until("ready\n"); err != nil {
			return err
		}
		t := time.Now()
		out.Close()
		if _, err := m.wait(ctx, id); err != nil {
			return err
		}
		took = append(took, time.Since(t))
	}
	m.b.row("", "dropped session to its end", took)
	if worst := took[len(took)-1]; worst > soon {
		return fmt.Errorf("a dropped session took %s to end, more than %s", worst, soon)
	}
	return nil
}

// stateTimes is the number of calls of GET_STATE beside bursts.
const stateTimes = 10

// crowd asks for the state of many containers.
func (m mesosBench) crowd(ctx context.Context) error {
	ids := make([]*mesosv1.ContainerID, stateTimes*m.b.burst)
	t := time.Now()
	err := m.b.each(ctx, len(ids), func(ctx context.Context, i int) error {
		ids[i] = containerID(nil, m.b.name())
		return m.launch(ctx, ids[i], "/bin/sleep", "3600")
	})
	if err != nil {
		return err
	}
	m.b.value("", "containers per second", float64(len(ids))/time.Since(t).Seconds(), "of %d, %d workers", len(ids), m.b.workers)
	err = m.b.read([]reading{
		{"", "GET_STATE", func() (int, error) {
			r, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_GET_STATE.Enum()})
			return len(r.GetGetState().GetGetTasks().GetLaunchedTasks()), err
		}},
		{"", "GET_CONTAINERS", func() (int, error) {
			r, err := m.api.Call(ctx, &mesosagent.Call{Type: mesosagent.Call_GET_CONTAINERS.Enum(), GetContainers: &mesosagent.Call_GetContainers{ShowStandalone: proto.Bool(true)}})
			return len(r.GetGetContainers().GetContainers()), err
		}},
	}, len(ids))
	if err != nil {
		return err
	}
	return m.b.each(ctx, len(ids), func(ctx context.Context, i int) error { return m.end(ctx, ids[i]) })
}
