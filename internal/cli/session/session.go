package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// Session connects our standard streams with those of a process. Send and Recv are the stream of the call.
type Session struct {
	App     *base.App
	Stdin   bool // sends our standard input
	Forward bool // forwards the signals that this program gets
	// Detach are the keys that detach from a terminal. The zero value has the usual ones.
	Detach DetachKeys
	Recv   func() (*longshorev1.Output, error)

	mu   sync.Mutex // serializes Send: a gRPC stream takes one sender at a time
	Send func(*longshorev1.Input) error

	tty bool // the process has a terminal
}

// errDetached means that the user has detached and the process keeps running.
var errDetached = errors.New("detached")

func (s *Session) input(in *longshorev1.Input) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Send(in)
}

// Run copies until the process ends and returns its exit status, or until the user detaches
// (errDetached). The caller must not have received anything yet.
func (s *Session) Run(ctx context.Context) (int, error) {
	first, err := s.Recv()
	if err != nil {
		return 0, base.StartError(err)
	}
	if first.GetStarted() == nil {
		return 0, errors.New("unexpected answer from the agent: does it have another version?")
	}
	s.tty = first.GetStarted().GetTty()
	restore := func() {}
	if s.tty && s.Stdin {
		if restore, err = s.App.RawInput(); err != nil {
			return 0, err
		}
	}
	defer restore()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, s.signals()...)
	defer signal.Stop(signals)
	done, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go s.passSignals(done, signals, stop)
	if s.Stdin {
		// It may wait for input that never comes, until this program exits.
		go s.copyStdin(stop)
	}
	type end struct {
		status int
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		status, err := s.copyOutput()
		ended <- end{status, err}
	}()
	select {
	case e := <-ended:
		return e.status, e.err
	case <-done.Done():
		if cause := context.Cause(done); errors.Is(cause, errDetached) {
			return 0, errDetached
		}
		return 0, context.Cause(done)
	}
}

func (s *Session) copyOutput() (int, error) {
	for {
		out, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the agent ended the stream without reporting how the process ended")
		}
		if err != nil {
			return 0, err
		}
		switch k := out.GetKind().(type) {
		case *longshorev1.Output_Stdout:
			_, err = s.App.Stdout.Write(k.Stdout)
		case *longshorev1.Output_Stderr:
			_, err = s.App.Stderr.Write(k.Stderr)
		case *longshorev1.Output_Exited:
			if k.Exited.GetStart() != "" {
				return 0, &base.ExitError{Status: base.StatusCannot, Err: fmt.Errorf("start the program: %s", k.Exited.GetStart())}
			}
			return int(k.Exited.GetStatus()), s.App.WarnLostOutput(k.Exited.GetLostOutput())
		}
		if err != nil {
			return 0, fmt.Errorf("write output: %w", err)
		}
	}
}

// copyStdin sends our standard input. On a terminal the detach keys end the session.
func (s *Session) copyStdin(stop context.CancelCauseFunc) {
	buf := make([]byte, 32<<10)
	detach := detacher{on: s.tty, keys: s.Detach.bytes()}
	for {
		n, err := s.App.Stdin.Read(buf)
		data, left := detach.filter(buf[:n])
		if len(data) > 0 {
			if s.input(&longshorev1.Input{Kind: &longshorev1.Input_Stdin{Stdin: data}}) != nil {
				return // the process has ended: the output has the reason
			}
		}
		if left {
			stop(errDetached)
			return
		}
		if err != nil {
			_ = s.input(&longshorev1.Input{Kind: &longshorev1.Input_StdinClosed{StdinClosed: true}})
			return
		}
	}
}

// detacher finds the detach keys in the input.
type detacher struct {
	on   bool
	keys string
	seen int // number of the keys that were typed last
}

// filter returns the bytes to send, and whether the keys were complete. It keeps bytes that may begin the keys.
func (d *detacher) filter(b []byte) (send []byte, left bool) {
	if !d.on {
		return b, false
	}
	for _, c := range b {
		if d.seen == 0 && c != d.keys[0] {
			send = append(send, c)
			continue
		}
		typed := d.keys[:d.seen] + string([]byte{c})
		for d.seen = min(len(typed), len(d.keys)); !strings.HasSuffix(typed, d.keys[:d.seen]); d.seen-- {
		}
		// The other bytes kept so far were ordinary input.
		send = append(send, typed[:len(typed)-d.seen]...)
		if d.seen == len(d.keys) {
			return send, true
		}
	}
	return send, false
}

// signals returns the signals that we handle: a change of the terminal's size, and all those that
// are forwarded. With a raw terminal the keys for interrupt and quit are input.
func (s *Session) signals() []os.Signal {
	list := []os.Signal{syscall.SIGWINCH}
	if s.Forward {
		list = append(list, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGALRM)
	}
	return list
}

// enoughInterrupts is the number of interrupts that end a session if its program ignores them.
const enoughInterrupts = 3

// errInterrupted means that the user interrupted so often that the session ends, even if the program
// continues.
var errInterrupted = errors.New("interrupted three times")

// passSignals forwards signals to the program until ctx ends. The third interrupt or request to
// terminate also ends the session by stop.
func (s *Session) passSignals(ctx context.Context, signals <-chan os.Signal, stop context.CancelCauseFunc) {
	s.resize()
	interrupts := 0
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if sig == syscall.SIGWINCH {
				s.resize()
				continue
			}
			if n, ok := sig.(syscall.Signal); ok {
				name := unix.SignalName(n)
				if name == "" {
					name = strconv.Itoa(int(n))
				}
				if n == syscall.SIGINT || n == syscall.SIGTERM {
					interrupts++
				}
				if interrupts == enoughInterrupts {
					stop(errInterrupted) // without forwarding this one: the program may no longer read
					return
				}
				_ = s.input(&longshorev1.Input{Kind: &longshorev1.Input_Signal{Signal: name}}) // errors show in the output
			}
		}
	}
}

func (s *Session) resize() {
	if size := s.App.TerminalSize(); s.tty && size != nil {
		_ = s.input(&longshorev1.Input{Kind: &longshorev1.Input_Resize{Resize: size}}) // errors show in the output
	}
}

// statusInterrupted is the exit status of a command that the user interrupted, as in shells.
const statusInterrupted = 130

// End returns the command's error for the results of Run: the process's exit status becomes the command's.
func (s *Session) End(status int, err error) error {
	switch {
	case errors.Is(err, errDetached):
		s.App.Warn("detached; the container keeps running")
		return nil
	case errors.Is(err, errInterrupted):
		return &base.ExitError{Status: statusInterrupted, Err: errors.New("interrupted three times; not waiting for the program's end")}
	case err != nil:
		return err
	case status != 0:
		return &base.ExitError{Status: status}
	}
	return nil
}
