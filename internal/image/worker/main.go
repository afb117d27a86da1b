package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/trust"
)

// LockFile is a file in the image directory that a running worker has locked.
const LockFile = "worker.lock"

// SocketFD is the descriptor of the worker's socket to the agent.
const SocketFD = 3

// Main is the worker process. It confines itself, runs the jobs that arrive on the socket, and
// ends when the agent closes it. It returns the exit status.
func Main() int {
	conn, err := NewConn(os.NewFile(SocketFD, "agent"))
	if err == nil {
		err = serve(conn)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "image worker:", err)
		return 1
	}
	return 0
}

// oomScore is the worker's oom_score_adj. It would inherit that of the agent, which the kernel kills last; a pull that fails
// is tried again.
const oomScore = "500"

func serve(conn *Conn) error {
	m, _, err := conn.Receive()
	if err != nil {
		return err
	}
	if m.Hello == nil {
		return fmt.Errorf("the agent did not say hello: %w", errdefs.ErrInvalidArgument)
	}
	if err := log.SetLevel("error"); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil && !errors.Is(err, fs.ErrPermission) { // of one that is above already
		return fmt.Errorf("limit memory: %w", err)
	}
	// The worker of a killed agent may still run.
	lock, err := os.OpenFile(filepath.Join(m.Hello.Root, LockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	platforms.DefaultSpec() // reads /proc/cpuinfo on ARM once, which the confined process cannot
	confinement, err := Confine(m.Hello.Root, m.Hello.Settings.HostDirs)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	w, err := New(m.Hello.Root, m.Hello.Settings)
	if err != nil {
		return err
	}
	if err := conn.Send(Message{Hello: &Hello{Confinement: confinement}}, nil); err != nil {
		return err
	}
	return (&server{w: w, conn: conn, jobs: map[uint64]*job{}}).run()
}

// server passes messages to jobs.
type server struct {
	w    *Worker
	conn *Conn

	mu   sync.Mutex // guards jobs
	jobs map[uint64]*job
}

// job is one job, and the Agent that it uses.
type job struct {
	s      *server
	id     uint64
	cancel context.CancelFunc

	mu      sync.Mutex // guards seq, waiting
	seq     uint64
	waiting map[uint64]chan *Answer
}

func (s *server) run() error {
	for {
		m, file, err := s.conn.Receive()
		if err != nil {
			return err // the agent is gone, so this process ends at once
		}
		switch {
		case m.Pull != nil:
			s.start(m.Job, func(ctx context.Context, j *job) ([]Image, error) {
				img, err := s.w.Pull(ctx, j, *m.Pull)
				return []Image{img}, err
			})
		case m.Push != nil:
			s.start(m.Job, func(ctx context.Context, j *job) ([]Image, error) { return nil, s.w.Push(ctx, j, *m.Push) })
		case m.Import && file != nil:
			s.start(m.Job, func(ctx context.Context, j *job) ([]Image, error) {
				defer func() { _ = file.Close() }()
				stop := context.AfterFunc(ctx, func() { _ = file.Close() })
				defer stop()
				return s.w.Import(ctx, j, file)
			})
		default:
			s.mu.Lock()
			j := s.jobs[m.Job]
			s.mu.Unlock()
			if j != nil && m.Cancel {
				j.cancel()
			}
			if j != nil && m.Answer != nil {
				j.answer(m.Answer)
			}
		}
	}
}

func (s *server) start(id uint64, do func(context.Context, *job) ([]Image, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	j := &job{s: s, id: id, cancel: cancel, waiting: map[uint64]chan *Answer{}}
	s.mu.Lock()
	s.jobs[id] = j
	s.mu.Unlock()
	go func() {
		defer cancel()
		images, err := do(ctx, j)
		if err != nil {
			images = nil
		}
		s.mu.Lock()
		delete(s.jobs, id)
		s.mu.Unlock()
		// Another error than that about the size means that the agent is gone, which run notices itself.
		serr := s.conn.Send(Message{Job: id, Done: &Done{Images: images, Err: ToWire(err)}}, nil)
		if errdefs.IsResourceExhausted(serr) {
			_ = s.conn.Send(Message{Job: id, Done: &Done{Err: ToWire(fmt.Errorf("the image's manifest says too much: %w", serr))}}, nil)
		}
	}()
}

// Lease implements Agent.
func (j *job) Lease(ctx context.Context, blobs, chains []digest.Digest) (map[digest.Digest]Place, error) {
	a, err := j.ask(ctx, Ask{Blobs: blobs, Chains: chains})
	return a.Places, err
}

// Admit implements Agent.
func (j *job) Admit(ctx context.Context, claim trust.Claim) error {
	_, err := j.ask(ctx, Ask{Claim: &claim})
	return err
}

// ask waits for the agent's answer.
func (j *job) ask(ctx context.Context, q Ask) (Answer, error) {
	ch := make(chan *Answer, 1)
	j.mu.Lock()
	j.seq++
	q.Seq = j.seq
	j.waiting[q.Seq] = ch
	j.mu.Unlock()
	if err := j.s.conn.Send(Message{Job: j.id, Ask: &q}, nil); err != nil {
		return Answer{}, err
	}
	select {
	case a := <-ch:
		return *a, a.Err.Unpack()
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
}

func (j *job) answer(a *Answer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if ch := j.waiting[a.Seq]; ch != nil {
		delete(j.waiting, a.Seq)
		ch <- a
	}
}

// Progress implements Agent.
func (j *job) Progress(p core.PullProgress) {
	_ = j.s.conn.Send(Message{Job: j.id, Progress: &p}, nil)
}
