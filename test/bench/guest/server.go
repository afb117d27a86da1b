package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// server is a program that answers Health on a socket of its own.
type server struct {
	cmd    *exec.Cmd
	state  string // the directory of an agent
	log    *bytes.Buffer
	client *ttrpc.Client
	took   time.Duration // from its start to its first answer
}

func (o Options) agent(ctx context.Context, name string) (*server, error) {
	socket := filepath.Join(o.Dir, name+".sock")
	s, err := start(ctx, socket, o.Agent, "--listen", "unix://"+socket, "--state", filepath.Join(o.Dir, name), "--cgroup-root", o.Cgroup)
	if err == nil {
		s.state = filepath.Join(o.Dir, name)
	}
	return s, err
}

func (o Options) bare(ctx context.Context, name string) (*server, error) {
	socket := filepath.Join(o.Dir, name+".sock")
	return start(ctx, socket, o.Bare, socket)
}

// start returns when the program has answered a Check.
func start(ctx context.Context, socket, program string, args ...string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s := &server{cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...), log: &bytes.Buffer{}} // stop ends it
	s.cmd.Stderr = s.log
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	err := s.check(ctx, socket)
	s.took = time.Since(began)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(program), err), s.stop())
	}
	return s, nil
}

// between is the time between two attempts to connect, and so the error of a figure.
const between = 100 * time.Microsecond

func (s *server) check(ctx context.Context, socket string) error {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socket})
		if err == nil {
			s.client = ttrpc.NewClient(conn)
			_, err = katav1.NewHealthClient(s.client).Check(ctx, &katav1.CheckRequest{})
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// stop ends the program. The bare server ends by the signal, the agent in order.
func (s *server) stop() error {
	if s.client != nil {
		_ = s.client.Close() // it answers no more
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	var exit *exec.ExitError
	err := s.cmd.Wait()
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(s.cmd.Path), err, s.log)
	}
	return nil
}

// Memory is in KiB.
type Memory struct {
	Private  int64            // memory without a file that no other process has: RssAnon
	Resident int64            // each page once, by how many of the processes share it: Pss
	Each     map[string]int64 // VmRSS
	Own      map[string]int64 // RssAnon
}

// memory is that of an agent with its keeper and nest.
func (s *server) memory(ctx context.Context) (Memory, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		pids, err := s.processes()
		if err != nil {
			return Memory{}, err
		}
		// The keeper's children are like it until they execute a container's program.
		if len(pids) == 3 {
			return MemoryOf(pids...)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Memory{}, fmt.Errorf("an agent, its keeper and its nest are %d processes: %w", len(pids), context.Cause(ctx))
		}
	}
}

func (s *server) processes() ([]int, error) {
	pids := []int{s.cmd.Process.Pid}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, "cmdline"))
		args := strings.Split(string(b), "\x00")
		if err != nil || len(args) < 3 || args[0] != "longshore-keeper" && args[0] != "longshore-nest" || !strings.HasPrefix(args[2], s.state+"/") {
			continue // it has just ended, or is another
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// MemoryOf is the memory of running processes together.
func MemoryOf(pids ...int) (Memory, error) {
	m := Memory{Each: map[string]int64{}, Own: map[string]int64{}}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			return m, err
		}
		args := strings.Split(string(cmdline), "\x00")
		name := filepath.Base(args[0])
		if name == "longshore-keeper" || name == "longshore-nest" {
			name = args[1]
		}
		private, resident, err := fields(filepath.Join(dir, "status"), "RssAnon:", "VmRSS:")
		if err != nil {
			return m, err
		}
		share, _, err := fields(filepath.Join(dir, "smaps_rollup"), "Pss:", "Pss:")
		if err != nil {
			return m, err
		}
		m.Private, m.Resident = m.Private+private, m.Resident+share
		m.Each[name], m.Own[name] = resident, private
	}
	return m, nil
}

// fields returns two numbers of a file of /proc.
func fields(path, one, other string) (a, b int64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	a, b = -1, -1
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue // a line of another kind
		}
		if f[0] == one {
			a = n
		}
		if f[0] == other {
			b = n
		}
	}
	if a < 0 || b < 0 {
		return 0, 0, fmt.Errorf("%s does not tell %s and %s", path, one, other)
	}
	return a, b, nil
}
