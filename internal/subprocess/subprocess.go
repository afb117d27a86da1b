// Package subprocess runs other programs, and does not wait longer than it must.
//
// Waiting for a program's end by os/exec alone waits for the end of its pipes too, and any
// process that it has left behind may hold those for ever. Every program that Longshore
// starts is therefore started here: Run and RunLeaving for programs whose output the caller
// wants, Daemon for processes that outlive the call, or the agent. A test in internal/arch keeps
// it so.
//
// A process that makes a session of its own leaves the group, and nothing here kills it. It holds
// nobody up either: its pipes are closed.
//
// Start at Run.
package subprocess

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeDelay is how long Wait waits for the pipes after the process has ended or was killed.
const pipeDelay = time.Second

// Command returns a command that leads a process group of its own. When ctx ends, the whole
// group is killed. Wait closes the pipes a second after the program has ended, whoever holds
// them. Callers may add to SysProcAttr. With Setsid in place of Setpgid
// the group is the session's first.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return Kill(cmd) }
	cmd.WaitDelay = pipeDelay
	return cmd
}

// Daemon returns a command that no context ends, and that ^C on a terminal does not reach. Its
// output must go to files: nothing may wait for its pipes.
func Daemon(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...) //nolint:forbidigo,noctx // it outlives the call that starts it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = pipeDelay
	return cmd
}

// Kill kills a started command's process group. The command must not have been waited for: then
// its number may be another group's.
func Kill(cmd *exec.Cmd) error {
	return errors.Join(ignoreGone(unix.Kill(-cmd.Process.Pid, unix.SIGKILL)), ignoreGone(unix.Kill(cmd.Process.Pid, unix.SIGKILL)))
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Run starts a command of Command, waits for its end, and kills what it has left in its process
// group. The error is ctx's cause when ctx has ended the program, and otherwise as os/exec
// returns it.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return started(ctx, err)
	}
	// The program is not reaped yet: as long as it is a zombie, no other group has its number.
	err := errors.Join(awaitEnd(cmd.Process.Pid), Kill(cmd))
	return ended(ctx, errors.Join(err, cmd.Wait()))
}

// RunLeaving is Run for programs that may leave processes behind on purpose. Their output is read
// for a second after the program's end; who writes later has no reader.
func RunLeaving(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return started(ctx, err)
	}
	return ended(ctx, cmd.Wait())
}

// started returns the error of a program that could not be started.
func started(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// ended returns the error of a program that has run.
func ended(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		// ErrWaitDelay: it has succeeded, and left a process that holds its pipes.
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// awaitEnd waits until a child has ended, and does not reap it.
func awaitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
