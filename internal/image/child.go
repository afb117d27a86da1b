package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/worker"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/weaken"
)

// WorkerArg is the first argument that makes the agent's program the image worker.
const WorkerArg = "image-worker"

// WorkerMain is the worker process. The program calls it when its first argument is WorkerArg, and
// exits with the result. args are the further arguments; there are none yet.
func WorkerMain(args []string) int {
	if len(args) > 0 {
		return 2
	}
	return worker.Main()
}

const (
	workerEnv    = "LONGSHORE_IMAGE_WORKER"
	startTimeout = 30 * time.Second
)

// child runs jobs in a worker process, which is started for a job and ends when it has been idle
// for a while. It implements runner.
type child struct {
	command  []string
	root     string
	settings worker.Settings
	idle     time.Duration
	log      *slog.Logger

	mu          sync.Mutex // guards proc, timer, closed, confinement; and users of every process
	proc        *process   // nil when none runs
	timer       *time.Timer
	closed      bool
	confinement string
}

// process is one worker process.
type process struct {
	conn   *worker.Conn
	ended  chan struct{} // closed when the process has been reaped
	why    error         // set before ended is closed
	stderr *tail
	log    *slog.Logger

	mu   sync.Mutex            // guards jobs, last
	jobs map[uint64]*remoteJob // nil once the worker is gone
	last uint64

	users int // child.mu guards it
}

// remoteJob is one job in the worker.
type remoteJob struct {
	ctx   context.Context //nolint:containedctx // of the call that waits for it
	agent worker.Agent
	done  chan *worker.Done
}

func (c *child) Confinement() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.confinement != "" {
		return c.confinement
	}
	if abi := worker.LandlockABI(); abi > 0 {
		return fmt.Sprintf("landlock abi %d (no worker has run yet)", abi)
	}
	return "no landlock (the kernel lacks it or it is off)"
}

// Pull implements runner.
func (c *child) Pull(ctx context.Context, agent worker.Agent, job worker.PullJob) (worker.Image, error) {
	images, err := c.do(ctx, agent, worker.Message{Pull: &job}, nil)
	if err != nil {
		return worker.Image{}, err
	}
	if len(images) != 1 {
		return worker.Image{}, fmt.Errorf("pull %s: the worker answered with %d images: %w", job.Ref, len(images), errdefs.ErrInternal)
	}
	return images[0], nil
}

// Push implements runner.
func (c *child) Push(ctx context.Context, agent worker.Agent, job worker.PushJob) error {
	_, err := c.do(ctx, agent, worker.Message{Push: &job}, nil)
	return err
}

// Import implements runner. The archive is sent through a pipe: the worker opens nothing itself.
func (c *child) Import(ctx context.Context, agent worker.Agent, archive io.Reader) ([]worker.Image, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(pw, archive)
		_ = pw.Close()
		copied <- err
	}()
	images, err := c.do(ctx, agent, worker.Message{Import: true}, pr)
	_ = pr.Close()
	if err != nil {
		// The copy may block in a reader that returns nothing; it is abandoned.
		return nil, err
	}
	if cerr := <-copied; cerr != nil && !errors.Is(cerr, syscall.EPIPE) {
		return nil, fmt.Errorf("import: read archive: %w", cerr)
	}
	return images, nil
}

func (c *child) do(ctx context.Context, agent worker.Agent, m worker.Message, file *os.File) ([]worker.Image, error) {
	p, err := c.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("start image worker: %w", err)
	}
	defer c.release(p)
	job := &remoteJob{ctx: ctx, agent: agent, done: make(chan *worker.Done, 1)}
	p.mu.Lock()
	p.last++
	m.Job = p.last
	alive := p.jobs != nil
	if alive {
		p.jobs[m.Job] = job
	}
	p.mu.Unlock()
	if alive {
		// An error means that the process is gone, which the wait below notices.
		_ = p.conn.Send(m, file)
	}
	cancelled := ctx.Done()
	for {
		select {
		case d := <-job.done:
			return d.Images, d.Err.Unpack()
		case <-p.ended:
			return nil, fmt.Errorf("image worker: %w: %w", errdefs.ErrUnavailable, p.why)
		case <-cancelled:
			cancelled = nil // wait until it no longer writes
			_ = p.conn.Send(worker.Message{Job: m.Job, Cancel: true}, nil)
		}
	}
}

// acquire returns the running process, or starts one.
func (c *child) acquire(ctx context.Context) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("the image store is closed: %w", errdefs.ErrUnavailable)
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.proc != nil {
		select {
		case <-c.proc.ended:
		default:
			c.proc.hold(1)
			return c.proc, nil
		}
	}
	p, err := c.start()
	if err != nil {
		return nil, err
	}
	c.proc = p
	p.hold(1)
	return p, nil
}

// release stops the process when nobody has used it for a while.
func (c *child) release(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.hold(-1) > 0 || c.proc != p {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(c.idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.proc == p && p.hold(0) == 0 {
			c.proc = nil
			_ = p.conn.Close()
		}
	})
}

// Close stops the worker process and waits for its end.
func (c *child) Close() error {
	c.mu.Lock()
	c.closed = true
	p := c.proc
	c.proc = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	if p != nil {
		_ = p.conn.Close()
		<-p.ended
	}
	return nil
}

// start executes the worker. Preconditions: c.mu is held.
func (c *child) start() (*process, error) {
	if os.Getenv(workerEnv) != "" {
		return nil, fmt.Errorf("%s does not call image.WorkerMain: %w", os.Args[0], errdefs.ErrFailedPrecondition)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "worker"), os.NewFile(uintptr(fds[1]), "agent")
	defer func() { _ = theirs.Close() }()
	conn, err := worker.NewConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, err
	}
	p := &process{conn: conn, ended: make(chan struct{}), stderr: &tail{}, log: c.log, jobs: map[uint64]*remoteJob{}}
	cmd := subprocess.Command(context.Background(), c.command[0], c.command[1:]...) // it outlives the call that starts it
	cmd.Env = workerEnviron()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	lines, said := io.Pipe()
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		p.logLines(lines)
	}()
	go func() {
		err := cmd.Wait()
		_ = said.Close()
		<-logged
		p.end(err)
	}()
	hello, err := p.greet(worker.Hello{Root: c.root, Settings: c.settings})
	if err != nil {
		_ = conn.Close()
		_ = cmd.Process.Kill()
		<-p.ended
		return nil, fmt.Errorf("%w: %w", errdefs.ErrUnavailable, errors.Join(err, p.why))
	}
	if c.confinement != hello.Confinement {
		c.log.Info("image worker confined", "by", hello.Confinement)
	}
	c.confinement = hello.Confinement
	go p.receive()
	return p, nil
}

// workerEnviron returns the environment variables that a registry client uses.
func workerEnviron() []string {
	env := []string{workerEnv + "=1", "PATH=/nonexistent", "HOME=/nonexistent", "GODEBUG=netdns=go", "GOTRACEBACK=single"}
	for _, key := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ"} {
		for _, k := range []string{key, strings.ToLower(key)} {
			if v, ok := os.LookupEnv(k); ok {
				env = append(env, k+"="+v)
			}
		}
	}
	return append(env, weaken.Environ()...)
}

func (p *process) greet(h worker.Hello) (*worker.Hello, error) {
	if err := p.conn.Send(worker.Message{Hello: &h}, nil); err != nil {
		return nil, err
	}
	late := time.AfterFunc(startTimeout, func() { _ = p.conn.Close() })
	defer late.Stop()
	m, _, err := p.conn.Receive()
	if err != nil {
		return nil, err
	}
	if m.Hello == nil {
		return nil, fmt.Errorf("the worker did not say hello: %w", errdefs.ErrInternal)
	}
	return m.Hello, nil
}

// logLines logs the worker's stderr.
func (p *process) logLines(stderr io.Reader) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(make([]byte, 4<<10), 64<<10)
	for lines.Scan() {
		p.stderr.add(lines.Text())
		p.log.Warn("image worker", "line", lines.Text())
	}
	_, _ = io.Copy(io.Discard, stderr) // a line too long
}

// end marks the worker as ended. err says how it ended.
func (p *process) end(err error) {
	p.why = errors.New("it ended: " + p.stderr.describe(err))
	p.mu.Lock()
	p.jobs = nil
	p.mu.Unlock()
	_ = p.conn.Close()
	close(p.ended)
}

// hold changes the number of users of the process. Preconditions: child.mu is held.
func (p *process) hold(n int) int {
	p.users += n
	return p.users
}

// tail holds the last lines that a process wrote.
type tail struct {
	mu   sync.Mutex // guards last
	last []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, line)
	if len(t.last) > 5 {
		t.last = t.last[1:]
	}
}

func (t *tail) describe(err error) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := "exit status 0"
	if err != nil {
		text = err.Error()
	}
	if len(t.last) > 0 {
		text += ": " + strings.Join(t.last, " | ")
	}
	return text
}

// receive passes the worker's messages to the jobs.
func (p *process) receive() {
	for {
		m, _, err := p.conn.Receive()
		if err != nil {
			_ = p.conn.Close() // which also ends the worker
			return
		}
		p.mu.Lock()
		job := p.jobs[m.Job]
		if m.Done != nil {
			delete(p.jobs, m.Job)
		}
		p.mu.Unlock()
		switch {
		case job == nil:
		case m.Done != nil:
			job.done <- m.Done
		case m.Progress != nil:
			job.agent.Progress(*m.Progress)
		case m.Ask != nil:
			go p.answer(m.Job, job, m.Ask)
		}
	}
}

func (p *process) answer(id uint64, job *remoteJob, ask *worker.Ask) {
	a := &worker.Answer{Seq: ask.Seq}
	var err error
	if ask.Claim != nil {
		err = job.agent.Admit(job.ctx, *ask.Claim)
	} else {
		a.Places, err = job.agent.Lease(job.ctx, ask.Blobs, ask.Chains)
	}
	a.Err = worker.ToWire(err)
	_ = p.conn.Send(worker.Message{Job: id, Answer: a}, nil)
}
