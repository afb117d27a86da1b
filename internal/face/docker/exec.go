package docker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo/translate"
)

// execConfig is the body of a request for an exec.
type execConfig struct {
	User         string
	Privileged   bool
	Tty          bool
	ConsoleSize  *[2]uint `json:",omitempty"`
	AttachStdin  bool
	AttachStderr bool
	AttachStdout bool
	DetachKeys   string
	Env          []string
	WorkingDir   string
	Cmd          dockertypes.Words
}

// execution is an exec: a process that a client has made, and may start.
type execution struct {
	id        core.ProcessID
	container core.ID
	cfg       execConfig
	keys      []byte

	mu      sync.Mutex // guards started, running, ended, code
	started bool
	running bool
	ended   time.Time // its end, or its creation before that
	code    *int      // nil until it has ended
}

// execs are the execs of all containers, by their ids.
type execs struct {
	f   *Face
	mu  sync.Mutex // guards all
	all map[core.ProcessID]*execution
}

// An exec that has ended is forgotten after the second sweep, as in dockerd.
const sweepExecs = 5 * time.Minute

func (x *execs) add(e *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[core.ProcessID]*execution{}
	}
	x.all[e.id] = e
	x.store(e)
}

func (x *execs) find(id string) (*execution, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.all[core.ProcessID(id)]; e != nil {
		return e, nil
	}
	return nil, noSuchExec(id)
}

func noSuchExec(id string) error {
	return errdefs.ErrNotFound.WithMessage("No such exec instance: " + id)
}

// forget drops execs some time after their end, until ctx ends.
func (x *execs) forget(ctx context.Context) {
	tick := time.NewTicker(sweepExecs)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, e := range x.list() {
				if e.endedBefore(now.Add(-sweepExecs)) {
					x.mu.Lock()
					delete(x.all, e.id)
					x.mu.Unlock()
					x.drop(e.id)
				}
			}
		}
	}
}

// list returns all execs.
func (x *execs) list() []*execution {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.all))
}

// endedBefore reports whether an exec ended, or was made and not started, before a time.
func (e *execution) endedBefore(at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.running && e.ended.Before(at)
}

// madeExec is the answer to a request for an exec.
type madeExec struct {
	ID string `json:"Id"`
}

func (x *execs) createExec(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	var cfg execConfig
	if err := r.Decode(&cfg); err != nil {
		return err
	}
	if len(cfg.Cmd) == 0 {
		return invalid.Errorf("No exec command specified")
	}
	keys, err := detachKeys(cfg.DetachKeys)
	if err != nil {
		return err
	}
	c, _, err := others{x.f}.managed(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	if err := executable(c); err != nil {
		return err
	}
	e := &execution{id: newExecID(), container: c.ID, cfg: cfg, keys: keys, ended: time.Now()}
	if _, err := x.process(c, e); err != nil { // an unknown user is an error here
		return err
	}
	x.add(e)
	x.f.publish(c, "exec_create: "+strings.Join(cfg.Cmd, " "), map[string]string{"execID": string(e.id)})
	return dockerhttp.Reply(w, http.StatusCreated, madeExec{string(e.id)})
}

func newExecID() core.ProcessID {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return core.ProcessID(hex.EncodeToString(b[:]))
}

// executable returns dockerd's error for a container that does not run.
func executable(c core.Container) error {
	switch {
	case c.State == core.ContainerPaused:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("Container %s is paused, unpause the container before exec", c.Key))
	case c.Restarting():
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is restarting, wait until the container is running", c.ID))
	case !c.State.Runs():
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is not running", c.ID))
	}
	return nil
}

// process returns the configuration of an exec's process.
func (x *execs) process(c core.Container, e *execution) (core.ProcessConfig, error) {
	size := core.Size{}
	if s := e.cfg.ConsoleSize; s != nil {
		size = core.Size{Rows: uint16(min(s[0], 0xffff)), Cols: uint16(min(s[1], 0xffff))}
	}
	var env []string
	for _, v := range e.cfg.Env {
		if strings.IndexByte(v, '=') > 0 {
			env = append(env, v)
		}
	}
	req := &longshorev1.ExecStart{
		Command: e.cfg.Cmd, Env: env, User: e.cfg.User, Workdir: e.cfg.WorkingDir, Tty: e.cfg.Tty, Privileged: e.cfg.Privileged,
		Size: &longshorev1.Size{Rows: uint32(size.Rows), Cols: uint32(size.Cols)},
	}
	p, err := translate.Exec(c, req)
	if err != nil {
		return core.ProcessConfig{}, err
	}
	cfg := core.ProcessConfig{ID: e.id, Spec: p, KeepExit: true, IO: core.IO{TTY: e.cfg.Tty, Size: size, Hold: true}}
	cfg.Attach = &core.StreamOptions{Stdout: true, Stderr: !e.cfg.Tty, Exclusive: true}
	if e.cfg.AttachStdin {
		cfg.IO.Stdin, cfg.Attach.Stdin = core.StdinOnce, true
	}
	return cfg, nil
}

// execStart is the body of a request to start an exec.
type execStart struct {
	Detach      bool
	Tty         bool
	ConsoleSize *[2]uint
}

func (x *execs) startExec(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	var body execStart
	if err := r.Decode(&body); err != nil {
		return err
	}
	e, err := x.find(r.Vars["id"])
	if err != nil {
		return err
	}
	c, err := x.changeable(ctx, e)
	if err != nil {
		return err
	}
	if err := executable(c); err != nil {
		return err
	}
	if body.ConsoleSize != nil && body.Tty {
		e.mu.Lock()
		e.cfg.ConsoleSize = body.ConsoleSize
		e.mu.Unlock()
	}
	if body.Detach {
		at, err := x.begin(ctx, c, e)
		if err != nil {
			return err
		}
		go x.drainExec(context.WithoutCancel(ctx), c, e, at)
		return dockerhttp.Reply(w, http.StatusOK, nil)
	}
	conn, err := r.Hijack(w, r.MediaType(body.Tty))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	x.serveExec(conn.Context(), c, e, conn, body.Tty)
	return nil
}

// changeable returns the container of an exec that clients may start and resize. The configuration may have changed since its create.
func (x *execs) changeable(ctx context.Context, e *execution) (core.Container, error) {
	c, err := x.reads().Container(ctx, e.container)
	switch o := (others{x.f}); {
	case err != nil:
		return c, noSuchExec(string(e.id))
	case c.Owner != core.OwnerDocker && !o.manages(c.Owner):
		return c, o.readOnly(&c)
	}
	return c, nil
}

// begin starts an exec's process, once.
func (x *execs) begin(ctx context.Context, c core.Container, e *execution) (*attach.Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.running:
		return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("exec command %s is already running", e.id))
	case e.started:
		return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("exec command %s has already run", e.id))
	}
	cfg, err := x.process(c, e)
	if err != nil {
		return nil, err
	}
	e.started = true
	x.store(e)
	x.f.publish(c, "exec_start: "+strings.Join(e.cfg.Cmd, " "), map[string]string{"execID": string(e.id)})
	run := attach.Exec{Engine: x.engine(&c), Log: x.f.log, Owner: core.OwnerDocker, Call: "docker exec"}
	at, err := run.Start(context.WithoutCancel(ctx), c.ID, cfg)
	if err != nil {
		code := core.StartStatus(err)
		e.code, e.ended = &code, time.Now()
		x.store(e)
		return nil, startError(err, "OCI runtime exec failed: exec failed: unable to start container process: ")
	}
	e.running = true
	return at, nil
}

// serveExec runs an exec with a client. When the client leaves, the process continues, and its output is dropped.
func (x *execs) serveExec(ctx context.Context, c core.Container, e *execution, conn *dockerhttp.Conn, tty bool) {
	out := &dockerhttp.Frames{To: conn, Raw: tty}
	at, err := x.begin(ctx, c, e)
	if err != nil {
		// The header is sent: dockerd's error is output, too.
		_ = out.Write(dockerhttp.Stdout, []byte(dockerhttp.Text(err)+"\r\n"))
		_ = conn.CloseWrite()
		return
	}
	var left atomic.Bool
	at.Output = func(stderr bool, data []byte) error {
		stream, want := dockerhttp.Stdout, e.cfg.AttachStdout
		if stderr {
			stream, want = dockerhttp.Stderr, e.cfg.AttachStderr
		}
		if !want || left.Load() {
			return nil
		}
		if err := out.Write(stream, data); err != nil {
			left.Store(true)
		}
		return nil
	}
	done := make(chan struct{})
	defer close(done)
	gone := conn.Left(ctx)
	go func() { // a client that left keeps no connection while the process runs on
		select {
		case <-gone:
			left.Store(true)
			_ = conn.Close()
		case <-done:
		}
	}()
	if e.cfg.AttachStdin {
		at.Input = func(_ context.Context, to *attach.Input) error {
			var err error
			if e.cfg.Tty {
				err = copyKeys(to, conn, e.keys)
			} else {
				err = to.Copy(conn)
			}
			if errors.Is(err, errDetached) {
				x.f.publish(c, "exec_detach", map[string]string{"execID": string(e.id)})
				_ = conn.Close()
				<-done // the process keeps its input
			}
			return nil
		}
	}
	x.finishExec(context.WithoutCancel(ctx), c, e, at)
	_ = conn.CloseWrite()
}

// drainExec runs an exec without a client.
func (x *execs) drainExec(ctx context.Context, c core.Container, e *execution, at *attach.Session) {
	at.Output = func(bool, []byte) error { return nil }
	x.finishExec(ctx, c, e, at)
}

// finishExec serves an exec until its process has ended, and records the end.
func (x *execs) finishExec(ctx context.Context, c core.Container, e *execution, at *attach.Session) {
	a, err := at.Run(ctx)
	code := a.Exit.Status()
	if err != nil {
		if now, cerr := x.reads().Container(ctx, c.ID); cerr == nil && running(&now, e.id) {
			return // this agent ends: the next one learns the code
		}
		code = core.LostCode
	}
	x.ended(c, e, code)
	run := attach.Exec{Engine: x.engine(&c), Log: x.f.log, Owner: core.OwnerDocker, Call: "docker exec"}
	run.End(ctx, at, false)
	_ = x.engine(&c).ForgetExit(ctx, at.Ref) // the exec has the code
}

// running reports whether an exec's process runs.
func running(c *core.Container, id core.ProcessID) bool {
	p := c.Process(id)
	return p != nil && p.Finished.IsZero()
}

// ended records the end of an exec's process.
func (x *execs) ended(c core.Container, e *execution, code int) {
	e.mu.Lock()
	e.running, e.code, e.ended = false, &code, time.Now()
	x.store(e)
	e.mu.Unlock()
	x.f.publish(c, "exec_die", map[string]string{"execID": string(e.id), "exitCode": strconv.Itoa(code)})
}

func (x *execs) resizeExec(w http.ResponseWriter, r *dockerhttp.Request) error {
	size, err := sizeOf(r)
	if err != nil {
		return err
	}
	e, err := x.find(r.Vars["id"])
	if err != nil {
		return err
	}
	e.mu.Lock()
	running := e.running
	e.mu.Unlock()
	if !running {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("exec process %s is not running", e.id))
	}
	if _, err := x.changeable(r.Context(), e); err != nil {
		return err
	}
	if err := x.reads().Resize(r.Context(), core.Ref{Container: e.container, Process: e.id}, size); err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, nil)
}

// execDocument is the document of an exec.
type execDocument struct {
	ID            string
	Running       bool
	ExitCode      *int
	ProcessConfig execProcess
	OpenStdin     bool
	OpenStderr    bool
	OpenStdout    bool
	CanRemove     bool
	ContainerID   string
	DetachKeys    []byte
	Pid           int
}

type execProcess struct {
	Tty        bool     `json:"tty"`
	Entrypoint string   `json:"entrypoint"`
	Arguments  []string `json:"arguments"`
	Privileged *bool    `json:"privileged,omitempty"`
	User       string   `json:"user,omitempty"`
}

func (x *execs) inspectExec(w http.ResponseWriter, r *dockerhttp.Request) error {
	e, err := x.find(r.Vars["id"])
	if err != nil {
		return err
	}
	c, err := x.reads().Container(r.Context(), e.container)
	if err != nil {
		return noSuchExec(string(e.id))
	}
	return dockerhttp.Reply(w, http.StatusOK, e.document(&c))
}

// document returns the document of an exec, which runs until the face knows its exit code.
func (e *execution) document(c *core.Container) execDocument {
	e.mu.Lock()
	defer e.mu.Unlock()
	privileged := e.cfg.Privileged
	d := execDocument{
		ID: string(e.id), Running: e.running, ExitCode: e.code, OpenStdin: e.cfg.AttachStdin, OpenStdout: e.cfg.AttachStdout, OpenStderr: e.cfg.AttachStderr,
		ContainerID: string(e.container), DetachKeys: []byte{}, CanRemove: e.code != nil,
		ProcessConfig: execProcess{Tty: e.cfg.Tty, Entrypoint: e.cfg.Cmd[0], Arguments: e.cfg.Cmd[1:], Privileged: &privileged, User: e.cfg.User},
	}
	if e.cfg.DetachKeys != "" {
		d.DetachKeys = e.keys
	}
	if p := c.Process(e.id); p != nil {
		d.Pid = p.Pid
	}
	return d
}
