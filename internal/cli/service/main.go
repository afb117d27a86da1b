package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/session"
)

// Ready says when a service is ready.
type Ready string

// The values of --sdnotify.
const (
	Ignore  Ready = "ignore"  // the command is not a service
	Running Ready = "running" // when the program runs
	Healthy Ready = "healthy" // when the program is healthy, or runs if it has no health check
)

// ParseReady parses the value of --sdnotify, which may be podman's.
func ParseReady(s string) (Ready, error) {
	switch s {
	case "conmon":
		return Running, nil
	case string(Ignore), string(Running), string(Healthy):
		return Ready(s), nil
	case "container":
		return "", errors.New("--sdnotify container: the program cannot notify systemd itself, because it is not in the unit's cgroup: use healthy, with a health check")
	}
	return "", fmt.Errorf("--sdnotify %q is none of ignore, running (conmon), healthy", s)
}

// Main is a container as the main process of a service: this command shows the container's output, notifies systemd when it is
// ready, stops it on SIGTERM, and exits with its status. It outlives restarts of the agent, as the container does.
type Main struct {
	App    *base.App
	Client *base.Client
	ID     string
	Ready  Ready

	asked bool      // its start was requested
	was   time.Time // its last start before that
	once  sync.Once // notifies systemd
	watch sync.Once // starts the wait for its health
}

// record has the members that we need of a container's record.
type record struct {
	State string `json:"state"`
	Main  struct {
		Started time.Time `json:"started"`
		Autopsy *struct {
			Exit struct {
				Code   int  `json:"code"`
				Signal int  `json:"signal"`
				Lost   bool `json:"lost"`
			} `json:"exit"`
		} `json:"autopsy"`
	} `json:"main"`
	Check json.RawMessage `json:"health_check"`
}

// statusLost is the exit status of a container that nobody saw ending.
const statusLost = 255

// status returns the exit status of an ended container.
func (r record) status() int {
	switch a := r.Main.Autopsy; {
	case a == nil || a.Exit.Lost:
		return statusLost
	case a.Exit.Signal != 0:
		return 128 + a.Exit.Signal
	default:
		return a.Exit.Code
	}
}

// errLost means that the agent has gone.
var errLost = errors.New("the connection to the agent is lost")

// Run starts the container unless it runs, and returns its exit status when it has ended.
func (m *Main) Run(ctx context.Context) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	go m.passSignals(ctx, signals)
	for {
		status, err := m.follow(ctx)
		if !lost(ctx, err) {
			return status, err
		}
		m.App.Warn("the agent has gone; waiting for the next one")
	}
}

// lost reports whether err means that the agent has gone.
func lost(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	code := status.Code(err)
	return errors.Is(err, errLost) || code == codes.Unavailable || code == codes.Canceled
}

// look returns the container's record, from the next agent if there is none at present.
func (m *Main) look(ctx context.Context) (record, error) {
	var r record
	resp, err := m.Client.Containers.Inspect(ctx, &longshorev1.InspectRequest{Name: m.ID}, grpc.WaitForReady(m.asked))
	if err == nil {
		err = json.Unmarshal(resp.GetJson(), &r)
	}
	return r, err
}

// follow starts the container unless it runs, and shows its output until it ends.
func (m *Main) follow(ctx context.Context) (int, error) {
	r, err := m.look(ctx)
	switch {
	case m.asked && status.Code(err) == codes.NotFound:
		return m.removed(ctx)
	case err != nil:
		return 0, base.StartError(err)
	case m.asked && r.State == "exited" && r.Main.Started.After(m.was):
		return r.status(), nil
	case !m.asked:
		m.was = r.Main.Started
	}
	runs := r.State == "running" || r.State == "paused" || r.State == "asleep"
	stream, err := m.Client.Containers.Attach(ctx)
	if err != nil {
		return 0, err
	}
	m.asked = true
	start := &longshorev1.AttachStart{Name: m.ID, Start: !runs}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv has the reason
		return 0, err
	}
	s := &session.Session{
		App: m.App,
		Recv: func() (*longshorev1.Output, error) {
			out, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				err = errLost
			}
			if out.GetStarted() != nil {
				m.started(ctx)
			}
			return out, err
		},
		Send: func(in *longshorev1.Input) error {
			return stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}})
		},
	}
	code, err := s.Run(ctx)
	if err == nil {
		// The agent ends the stream when a container with --rm is removed.
		_ = stream.CloseSend()
		for rerr := error(nil); rerr == nil; _, rerr = stream.Recv() {
		}
	}
	return code, err
}

// removed returns the exit status of a container that ended and was removed while there was no connection: the event log still
// has it.
func (m *Main) removed(ctx context.Context) (int, error) {
	stream, err := m.Client.Node.Events(ctx, &longshorev1.EventsRequest{Since: timestamppb.New(m.was), Kinds: []string{"container.exited"}})
	if err != nil {
		return 0, err
	}
	var found *longshorev1.Autopsy
	err = base.Receive(stream.Recv, func(resp *longshorev1.EventsResponse) error {
		if e := resp.GetEvent(); e.GetContainer() == m.ID {
			found = e.GetAutopsy()
		}
		return nil
	})
	if err == nil && found == nil {
		err = &base.ExitError{Status: statusLost, Err: errors.New("the container was removed, and nobody knows how it ended")}
	}
	return int(found.GetStatus()), err
}

// started notifies systemd that the program runs, or follows its health until it may be notified.
func (m *Main) started(ctx context.Context) {
	if m.Ready != Healthy {
		m.ready()
		return
	}
	go func() {
		for {
			err := m.awaitHealth(ctx)
			if err == nil {
				m.ready()
				return
			}
			if !lost(ctx, err) {
				if ctx.Err() == nil && status.Code(err) != codes.NotFound { // it has ended: Run returns
					m.App.Warn("could not follow the container's health: %s", m.App.Explain(err))
				}
				return
			}
		}
	}()
}

// ready notifies systemd once.
func (m *Main) ready() {
	m.once.Do(func() { notify(daemon.SdNotifyReady + "\nSTATUS=The container runs.") })
}

// notify sends a message to systemd, if this process is a service. A message that is lost has the effect of none: the start
// ends by its timeout.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// awaitHealth returns nil when the container is healthy, or runs and has no health check.
func (m *Main) awaitHealth(ctx context.Context) error {
	r, err := m.look(ctx)
	if err != nil || len(r.Check) == 0 || string(r.Check) == "null" {
		return err
	}
	m.watch.Do(func() { notify("STATUS=The container runs; it is not healthy yet.") })
	// The events since the start: the result may have come before this call.
	stream, err := m.Client.Node.Events(ctx, &longshorev1.EventsRequest{
		Since: timestamppb.New(r.Main.Started), Name: m.ID, Kinds: []string{"container.health"}, Follow: true,
	})
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errLost
		case err != nil:
			return err
		case strings.HasPrefix(resp.GetEvent().GetNote(), string(Healthy)):
			return nil
		}
	}
}

// passSignals stops the container on SIGTERM and SIGINT, and passes the others to its program, until ctx ends.
func (m *Main) passSignals(ctx context.Context, signals <-chan os.Signal) {
	stopping := false
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig != syscall.SIGTERM && sig != syscall.SIGINT {
				n, _ := sig.(syscall.Signal)
				_, err := m.Client.Containers.Kill(ctx, &longshorev1.KillRequest{Name: m.ID, Signal: unix.SignalName(n)}, grpc.WaitForReady(true))
				m.warn(ctx, "pass a signal to", err)
				continue
			}
			if stopping {
				continue
			}
			stopping = true
			notify(daemon.SdNotifyStopping)
			go func() {
				_, err := m.Client.Containers.Stop(ctx, &longshorev1.StopRequest{Name: m.ID}, grpc.WaitForReady(true))
				m.warn(ctx, "stop", err)
			}()
		}
	}
}

// warn reports that the container could not be changed, unless it has gone.
func (m *Main) warn(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil && status.Code(err) != codes.NotFound {
		m.App.Warn("could not %s the container: %s", what, m.App.Explain(err))
	}
}
