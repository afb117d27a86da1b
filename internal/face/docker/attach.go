package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/solo"
)

// errDetached ends the session of a client that has typed the detach keys.
var errDetached = errors.New("detached") //nolint:gochecknoglobals // an error value

// errInputEnded ends the session of a client that has ended its input, if that is not the end of the process's.
var errInputEnded = errors.New("the client has ended its input") //nolint:gochecknoglobals // an error value

// pendingJoin is a client that is attached to a container without a process. It joins the container's next run.
type pendingJoin struct {
	begin func(ctx context.Context) // opens the process's streams, before its program starts
	begun chan struct{}             // is closed after begin
	gone  chan struct{}             // is closed if the container was removed
}

// attachOptions are the parameters of an attach request.
type attachOptions struct {
	logs, stream, stdin, stdout, stderr bool
	keys                                []byte
}

// allStreamsBefore is the version before that a websocket has all streams.
const allStreamsBefore = "1.42"

// attach attaches a client, by a websocket if the method is GET.
func (f *Face) attach(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context()) // the client may end its half early
	o := attachOptions{r.Bool("logs"), r.Bool("stream"), r.Bool("stdin"), r.Bool("stdout"), r.Bool("stderr"), nil}
	websocket := r.Method == http.MethodGet
	if websocket && r.API.Before(allStreamsBefore) {
		o.stdin, o.stdout, o.stderr = true, true, true
	}
	var err error
	if o.keys, err = detachKeys(r.Get("detachKeys")); err != nil {
		return err
	}
	c, err := f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	switch {
	case c.State == core.ContainerPaused:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is paused, unpause the container before attach", r.Vars["id"]))
	case c.Restarting():
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is restarting, wait until the container is running", r.Vars["id"]))
	}
	if websocket {
		if err := r.WantsWebsocket(); err != nil {
			return err
		}
	}
	s := &attachSession{f: f, c: c, o: o, since: time.Now()}
	// With a client attached, an ended container with AutoRemove stays until the client has its output.
	f.solo.Enter(c.ID)
	defer f.solo.Leave(ctx, c.ID)
	var wait *pendingJoin
	if o.stream {
		if wait, err = s.join(ctx); err != nil {
			return err
		}
	}
	var conn *dockerhttp.Conn
	if websocket {
		conn, err = r.Websocket(w)
	} else {
		conn, err = r.Hijack(w, r.MediaType(c.Main.TTY))
	}
	if err != nil {
		f.leave(c.ID, wait)
		s.close()
		return err
	}
	defer func() { _ = conn.Close() }()
	if websocket && !o.stdin {
		go conn.Drop()
	}
	s.out = &dockerhttp.Frames{To: conn, Raw: c.Main.TTY || websocket}
	s.in = conn
	f.publish(c, "attach", nil)
	s.serve(conn.Context(), conn, wait)
	return nil
}

// attachSession is a client attached to a container's main process.
type attachSession struct {
	f   *Face
	c   core.Container
	o   attachOptions
	out *dockerhttp.Frames
	in  io.Reader
	at  *attach.Session
	// since is the time of the request.
	since time.Time
}

// join opens the streams of the running process, or registers the client for the container's next one.
func (s *attachSession) join(ctx context.Context) (*pendingJoin, error) {
	p := &pendingJoin{begun: make(chan struct{}), gone: make(chan struct{})}
	p.begin = func(ctx context.Context) {
		if err := s.open(ctx); err != nil {
			s.f.log.WarnContext(ctx, "a client could not be attached to a container that is started", "container", string(s.c.ID), "error", err)
		}
		close(p.begun)
	}
	s.f.mu.Lock()
	s.f.waiting[s.c.ID] = append(s.f.waiting[s.c.ID], p)
	s.f.mu.Unlock()
	// The client is registered before the state is read, so that it misses no start, and without the mutex, so that a process with a
	// slow keeper delays no other client.
	c, err := s.f.own.Container(ctx, s.c.ID)
	switch {
	case err != nil:
		s.f.leave(s.c.ID, p)
		return nil, noSuchContainer(s.c.ID.Short())
	case c.State.Runs() && s.f.unregister(s.c.ID, p):
		s.c = c
		return nil, s.open(ctx)
	}
	return p, nil
}

// join lets the clients that wait for a container's next run join it. The program does not run yet.
func (f *Face) join(ctx context.Context, id core.ID) {
	f.mu.Lock()
	list := f.waiting[id]
	delete(f.waiting, id)
	f.mu.Unlock()
	for _, p := range list {
		p.begin(ctx)
	}
}

// abandon ends the sessions of clients that wait for the next run of a removed container.
func (f *Face) abandon(id core.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.waiting[id] {
		close(p.gone)
	}
	delete(f.waiting, id)
}

// leave removes a client that waits for a container's next run. If the run is starting, it waits until the client's session
// is open, so that the caller can close it. p may be nil.
func (f *Face) leave(id core.ID, p *pendingJoin) {
	if p == nil || f.unregister(id, p) {
		return
	}
	select {
	case <-p.begun:
	case <-p.gone:
	}
}

// unregister removes a waiting client and reports whether it was still registered.
func (f *Face) unregister(id core.ID, p *pendingJoin) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.waiting[id]
	at := slices.Index(list, p)
	if at < 0 {
		return false
	}
	if list = slices.Delete(list, at, at+1); len(list) == 0 {
		delete(f.waiting, id)
		return true
	}
	f.waiting[id] = list
	return true
}

// open makes the session with the process.
func (s *attachSession) open(ctx context.Context) error {
	c, err := s.f.own.Container(ctx, s.c.ID)
	if err != nil {
		return err
	}
	s.at = &attach.Session{Engine: s.f.own, Ref: core.Ref{Container: c.ID}, Log: solo.OwnLog(c)}
	s.at.From.Since = s.since // not the output of before, and of an earlier run
	output := s.at.Log == nil && (s.o.stdout || s.o.stderr)
	opts := core.StreamOptions{
		Stdin: s.o.stdin && c.Config.IO.Stdin != core.StdinClosed, Stdout: output && s.o.stdout, Stderr: output && s.o.stderr && !c.Main.TTY, Exclusive: c.Config.IO.Hold,
	}
	if opts.Stdin || opts.Stdout || opts.Stderr {
		if s.at.Streams, err = s.f.own.Streams(context.WithoutCancel(ctx), s.at.Ref, opts); err != nil {
			return err
		}
	}
	s.at.Follow(ctx)
	return nil
}

func (s *attachSession) close() {
	if s.at != nil {
		s.at.Close()
	}
}

// serve serves the client until the process has ended or the client has left.
func (s *attachSession) serve(ctx context.Context, conn *dockerhttp.Conn, wait *pendingJoin) {
	defer s.close()
	if s.o.logs {
		if err := s.writeLog(ctx); err != nil || !s.o.stream {
			return
		}
	}
	if !s.o.stream {
		return
	}
	if wait != nil {
		left := conn.Left(ctx)
		select {
		case <-wait.begun:
		case <-wait.gone:
			return
		case <-left:
			s.f.leave(s.c.ID, wait)
			return
		case <-ctx.Done():
			s.f.leave(s.c.ID, wait)
			return
		}
	}
	if s.at == nil {
		return
	}
	s.at.Output = s.send
	if s.o.stdin {
		s.at.Input = func(ctx context.Context, to *attach.Input) error { return s.input(ctx, to) }
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := conn.Left(ctx)
	go func() {
		select {
		case <-left: // a silent program would not notice it
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := s.at.Run(ctx)
	if errors.Is(err, errDetached) {
		s.f.publish(s.c, "detach", nil)
	}
	_ = conn.CloseWrite()
}

func (s *attachSession) send(stderr bool, data []byte) error {
	stream, want := dockerhttp.Stdout, s.o.stdout
	if stderr {
		stream, want = dockerhttp.Stderr, s.o.stderr
	}
	if !want {
		return nil
	}
	return s.out.Write(stream, data)
}

// input copies the client's input to the process.
func (s *attachSession) input(_ context.Context, to *attach.Input) error {
	var err error
	if s.c.Config.IO.TTY {
		err = copyKeys(to, s.in, s.o.keys)
	} else {
		err = to.Copy(s.in)
	}
	if err == nil && s.c.Config.IO.Stdin == core.StdinOpen {
		return errInputEnded // the process keeps its input, and as in dockerd the session ends
	}
	return err
}

// writeLog sends the earlier output.
func (s *attachSession) writeLog(ctx context.Context) error {
	sinks := logs.Whole(s.c.Config.IO.Sinks)
	if len(sinks) == 0 {
		return nil
	}
	return logs.ReadWhole(ctx, sinks, logs.Options{}, func(e logs.Entry) error {
		text := e.Text
		if !e.Partial {
			text = append(text[:len(text):len(text)], '\n')
		}
		return s.send(e.Stream == "stderr", text)
	})
}

// detachKeys reads the keys that detach a client, such as ctrl-p,ctrl-q, which are the default.
func detachKeys(text string) ([]byte, error) {
	if text == "" {
		return []byte{16, 17}, nil
	}
	var keys []byte
	for _, word := range strings.Split(text, ",") {
		switch {
		case len(word) == 1:
			keys = append(keys, word[0])
		case len(word) == len("ctrl-x") && word[:5] == "ctrl-":
			k := word[5]
			switch {
			case k >= 'a' && k <= 'z':
				keys = append(keys, k-'a'+1)
			case k == '@':
				keys = append(keys, 0)
			case k >= '[' && k <= '_':
				keys = append(keys, k-'['+27)
			default:
				return nil, invalid.Errorf("Invalid detach keys (%s) provided: Unknown character: '%s'", text, word)
			}
		default:
			return nil, invalid.Errorf("Invalid detach keys (%s) provided: Unknown character: '%s'", text, word)
		}
	}
	return keys, nil
}

// copyKeys copies the input of a terminal, and returns errDetached at the detach keys.
func copyKeys(to io.Writer, from io.Reader, keys []byte) error {
	buf, out := make([]byte, 4096), make([]byte, 0, 4096)
	matched, closed := 0, false
	for {
		n, err := from.Read(buf)
		out = out[:0]
		for _, b := range buf[:n] {
			if len(keys) > 0 && b == keys[matched] {
				if matched++; matched < len(keys) {
					continue
				}
				if err = errDetached; len(out) > 0 && !closed {
					_, _ = to.Write(out)
				}
				return err
			}
			out = append(out, keys[:matched]...)
			if matched = 0; len(keys) > 0 && b == keys[0] {
				matched = 1
				continue
			}
			out = append(out, b)
		}
		if err != nil {
			out = append(out, keys[:matched]...)
		}
		if len(out) > 0 && !closed {
			_, werr := to.Write(out)
			closed = werr != nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
