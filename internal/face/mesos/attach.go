package mesos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/errtext"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/session"
	"github.com/longshore/longshore/internal/face/mesos/translate"
)

// heartbeatInterval is the default interval of heartbeats on streams of output.
const heartbeatInterval = 30 * time.Second

// launchSession runs a command in its parent container for as long as the connection is
// open, and streams its output.
func (s *server) launchSession(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetLaunchNestedContainerSession()
	l := translate.Launch{ID: api.FormatID(in.GetContainerId()), Command: in.GetCommand(), Container: in.GetContainer(), PermitUser: s.permitUser(ctx, x)}
	sess, err := s.openSession(ctx, l)
	if err != nil {
		return asBadRequest(err)
	}
	if sess == nil {
		x.Empty(http.StatusAccepted)
		return nil
	}
	out, err := x.Stream()
	if err == nil {
		_, err = sess.Run(ctx, out.Send, s.heartbeat)
	}
	s.closeSession(ctx, l.ID, sess, err != nil)
	return err
}

// openSession starts the command; it returns nil without an error if it runs already.
// The output is held back until it is read.
func (s *server) openSession(ctx context.Context, l translate.Launch) (*session.Session, error) {
	unlock, err := s.ids.Lock(ctx, l.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if runs, err := s.prepare(ctx, &l); err != nil || runs {
		return nil, err
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	p, err := l.Process()
	if err != nil {
		return nil, err
	}
	_, value := api.SplitID(l.ID)
	cfg := attach.Held(p, core.StdinOpen, translate.Size(l.Container.GetTtyInfo()))
	cfg.ID, cfg.KeepExit = core.ProcessID(value), true // clients ask for the exit after the stream has ended
	at, err := attach.Exec{Engine: s.engine}.Start(ctx, l.Parent.ID, cfg)
	if err != nil {
		return nil, err
	}
	sess := &session.Session{Session: at, TTY: l.TTY()}
	s.sessions.Begin(l.ID, sess)
	return sess, nil
}

// closeSession ends a session and the processes that it started. If broken, it kills
// the session's own process first, so that its exit says so.
func (s *server) closeSession(ctx context.Context, id string, sess *session.Session, broken bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	sess.Close()
	unlock := s.lockSession(ctx, id, sess)
	if unlock == nil {
		return
	}
	defer unlock()
	const call = "LAUNCH_NESTED_CONTAINER_SESSION"
	var err error
	if broken {
		if err = ignoreNotFound(s.engine.Signal(ctx, sess.Ref, int(unix.SIGKILL), stopRequest(call))); err == nil {
			_, err = s.engine.Wait(ctx, sess.Ref)
		}
	}
	s.sessions.End(id)
	_, value := api.SplitID(id)
	t := target{container: core.Container{Meta: core.Meta{ID: sess.Ref.Container}}, session: core.ProcessID(value)}
	if err = errors.Join(ignoreNotFound(err), ignoreNotFound(s.remove(ctx, t, call))); err != nil {
		s.log.WarnContext(ctx, "could not remove a session; the next start of the agent removes it", "container", id, "error", err)
	}
}

// lockSession locks the id of a session; nil if it belongs to another session by now:
// when clients learn of the end, one of them may remove the session and use its id
// again.
func (s *server) lockSession(ctx context.Context, id string, sess *session.Session) (unlock func()) {
	unlock, err := s.ids.Lock(ctx, id)
	if err != nil {
		s.log.WarnContext(ctx, "could not remove a session; the next start of the agent removes it", "container", id, "error", err)
		return nil
	}
	if s.sessions.Live(id) != sess {
		unlock()
		return nil
	}
	return unlock
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// attachOutput streams a container's output from now on.
func (s *server) attachOutput(ctx context.Context, x *api.Exchange) error {
	id := api.FormatID(api.ContainerIDOf(x.Call))
	if sess := s.sessions.Live(id); sess != nil {
		return sess.Watch(ctx, func() (session.Send, error) {
			out, err := x.Stream()
			if err != nil {
				return nil, err
			}
			return out.Send, nil
		}, s.heartbeat)
	}
	t, err := s.findAttachable(ctx, id)
	if err != nil {
		return err
	}
	streams, err := s.engine.Streams(ctx, t.ref(), core.StreamOptions{Stdout: true})
	if err != nil {
		return err
	}
	view := &session.Session{Session: &attach.Session{Engine: s.engine, Ref: t.ref(), Streams: streams}, TTY: true}
	defer view.Close()
	out, err := x.Stream()
	if err == nil {
		_, err = view.Run(ctx, out.Send, s.heartbeat)
	}
	return ignoreNotFound(err) // NotFound: it was removed after its end
}

// findAttachable finds a container that clients can attach to: a running one with a
// terminal.
func (s *server) findAttachable(ctx context.Context, id string) (target, error) {
	if _, err := s.engine.ContainerByKey(ctx, core.Key(api.RootOf(id))); errdefs.IsNotFound(err) {
		return target{}, &api.Error{Code: http.StatusNotFound, Text: "Container " + id + " cannot be found"}
	}
	t, err := s.find(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return t, fmt.Errorf("Unknown container %s", id) //nolint:staticcheck // Mesos' text
	case err != nil:
		return t, err
	case t.process().Autopsy != nil:
		return t, fmt.Errorf("Unknown container %s", id) //nolint:staticcheck // Mesos' text
	case !t.process().TTY:
		return t, errors.New("I/O switchboard server was disabled for this container")
	}
	return t, nil
}

// inputGrace is how long input is still read after the container has ended, so that the
// client gets its answer.
const inputGrace = time.Second

// attachInput sends the client's input to a container. The end of the stream does not
// close the container's standard input unless the client says so, because another
// client may continue.
func (s *server) attachInput(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetAttachContainerInput()
	if err := api.ValidateFirstInput(in); err != nil {
		return &api.Error{Code: http.StatusBadRequest, Text: errtext.Plain(err.Error())}
	}
	id := api.FormatID(in.GetContainerId())
	to := &input{Input: attach.Input{Engine: s.engine, Ends: true}}
	if sess := s.sessions.Live(id); sess != nil {
		to.Ref, to.tty, to.Stdin = sess.Ref, sess.TTY, sess.Streams.Stdin
	} else {
		t, err := s.findAttachable(ctx, id)
		if err != nil {
			return err
		}
		streams, err := s.engine.Streams(ctx, t.ref(), core.StreamOptions{Stdin: true})
		if err != nil {
			return err
		}
		defer func() { _ = streams.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = streams.Close() })
		defer stop()
		to.Ref, to.tty, to.Stdin = t.ref(), true, streams.Stdin
	}
	release, ok := s.sessions.Input(id)
	if !ok {
		return &api.Error{Code: http.StatusConflict, Text: "Multiple input connections are not allowed"}
	}
	defer release()
	return to.run(ctx, x)
}

// input is a stream of input for a process.
type input struct {
	attach.Input
	tty bool
}

// run forwards records until the client sends no more, or the process has ended.
func (i *input) run(ctx context.Context, x *api.Exchange) error {
	if err := x.OpenInput(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	waited := make(chan struct{})
	ended := false
	go func() {
		defer close(waited)
		if _, err := i.Engine.Wait(ctx, i.Ref); err == nil || errdefs.IsNotFound(err) {
			ended = true
			x.EndInput(time.Now().Add(inputGrace))
		}
	}()
	err := i.copy(ctx, x)
	cancel()
	<-waited
	if ended {
		return nil // the error is a consequence of the end
	}
	return err
}

// copy forwards records until the end of the stream.
func (i *input) copy(ctx context.Context, x *api.Exchange) error {
	for {
		call, err := x.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := i.handle(ctx, call.GetAttachContainerInput().GetProcessIo()); err != nil {
			return err
		}
	}
}

// handle forwards one record.
func (i *input) handle(ctx context.Context, m *mesosagent.ProcessIO) error {
	if m.GetType() == mesosagent.ProcessIO_CONTROL {
		if m.GetControl().GetType() != mesosagent.ProcessIO_Control_TTY_INFO {
			return nil
		}
		if !i.tty {
			return &api.Error{Code: http.StatusBadRequest, Text: "Unable to set the window size: the container has no terminal"}
		}
		return i.Engine.Resize(ctx, i.Ref, translate.Size(m.GetControl().GetTtyInfo()))
	}
	data := m.GetData().GetData()
	if len(data) > 0 {
		if _, err := i.Write(data); err != nil {
			return fmt.Errorf("Failed writing to stdin: %w", err) //nolint:staticcheck // Mesos' text
		}
		return nil
	}
	if i.tty {
		return nil // on a terminal the end of input is a character
	}
	return i.Engine.CloseStdin(ctx, i.Ref)
}
