// Package hubload measures a hub as its nodes see it: the memory of a session, the time of a task
// to its node, the number of stored statuses. The same clients do the same to swarmkit's
// dispatcher. Start at Run.
package hubload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
)

// request and answer are those of test/bench/hubserver.
type request struct {
	Op       string
	N        int           `json:",omitempty"`
	CSR      []byte        `json:",omitempty"`
	Prefix   string        `json:",omitempty"`
	Prefixes []string      `json:",omitempty"`
	Nodes    []string      `json:",omitempty"`
	Within   time.Duration `json:",omitempty"`
}

type answer struct {
	Addr         string
	Nodes        map[string][]byte
	Began, Ended int64
	N            int
	Err          string
}

// server is a server under measurement, in a process of its own.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
	log string
	// Addr is where nodes reach it.
	addr string
}

// start runs a program with a directory of its own, which is gone when the server is stopped.
func start(ctx context.Context, dir string, argv ...string) (*server, error) {
	s := &server{log: filepath.Join(dir, "log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	s.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	s.cmd.Stderr = log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	s.enc, s.dec = json.NewEncoder(s.in), json.NewDecoder(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	var a answer
	if err := s.dec.Decode(&a); err != nil {
		s.stop()
		return nil, s.failed("start", err)
	}
	s.addr = a.Addr
	return s, nil
}

// stop ends it. Its data is useless then.
func (s *server) stop() {
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) failed(what string, err error) error {
	said, _ := os.ReadFile(s.log)
	return fmt.Errorf("%s: %w\n%s", what, err, said[max(0, len(said)-4000):])
}

// ask has it do something.
func (s *server) ask(r request) (answer, error) {
	if err := s.enc.Encode(r); err != nil {
		return answer{}, s.failed(r.Op, err)
	}
	var a answer
	if err := s.dec.Decode(&a); err != nil {
		return answer{}, s.failed(r.Op, err)
	}
	if a.Err != "" {
		return a, s.failed(r.Op, errors.New(a.Err))
	}
	return a, nil
}

// cpu is the time that the process itself has had.
func (s *server) cpu() time.Duration { return machine.ProcessCPU(s.cmd.Process.Pid) }

// memory is the process's memory in bytes: resident, once it has stopped falling.
func (s *server) memory(ctx context.Context) (int64, error) {
	least := int64(-1)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for same := 0; same < 3; same++ {
		now, err := machine.ProcessMemory(s.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		if least < 0 || now < least-least/100 {
			least, same = now, 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return least, nil
}
