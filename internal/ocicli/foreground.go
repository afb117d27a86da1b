package ocicli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// foreground releases a parked process, forwards signals to it, connects this terminal
// to the process's if it has one, and returns its status when it has ended.
func (l *launched) foreground(ctx context.Context, releaseParked func() error) (int, error) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGALRM, unix.SIGWINCH)
	defer signal.Stop(signals)
	drain := func() {}
	if l.master >= 0 {
		restore, err := l.attachTerminal(&drain)
		if err != nil {
			l.kill()
			return 0, err
		}
		defer restore()
	}
	if err := releaseParked(); err != nil {
		return 0, err
	}
	ended := make(chan unix.WaitStatus, 1)
	go func() { ended <- l.wait() }()
	for {
		select {
		case status := <-ended:
			drain()
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		case s := <-signals:
			l.forward(s)
		case <-ctx.Done():
			_ = kernel.PidfdSignal(l.PidFD, int(unix.SIGKILL))
			ctx = context.Background() // killed already; from now on the process's end is awaited
		}
	}
}

// forward forwards a signal; for SIGWINCH it sets the terminal's size.
func (l *launched) forward(s os.Signal) {
	n, ok := s.(unix.Signal)
	switch {
	case !ok:
	case n == unix.SIGWINCH && l.master >= 0:
		l.resize()
	default:
		_ = kernel.PidfdSignal(l.PidFD, int(n)) // ESRCH: it has ended
	}
}

func (l *launched) resize() {
	for _, fd := range []int{1, 0} {
		if size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(l.master, unix.TIOCSWINSZ, size)
			return
		}
	}
}

// attachTerminal copies between this process's standard streams and the terminal of the
// container's process. It sets drain to a function that writes the rest of the output,
// to be called after that process has ended.
func (l *launched) attachTerminal(drain *func()) (restore func(), err error) {
	restore = func() {}
	if term.IsTerminal(0) {
		old, err := term.MakeRaw(0)
		if err != nil {
			return nil, fmt.Errorf("set the terminal raw: %w", err)
		}
		restore = func() { _ = term.Restore(0, old) }
	}
	l.resize()
	if err := unix.SetNonblock(l.master, true); err != nil {
		restore()
		return nil, os.NewSyscallError("fcntl", err)
	}
	fd, err := unix.FcntlInt(uintptr(l.master), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		restore()
		return nil, os.NewSyscallError("fcntl", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	go func() { _, _ = io.Copy(master, os.Stdin) }() // may block until this process ends
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(os.Stdout, master)
	}()
	*drain = func() {
		// Another process may still have the terminal open, so read only the present bytes.
		_ = master.SetReadDeadline(time.Now())
		<-done
		for n := kernel.Available(l.master); n > 0; n = kernel.Available(l.master) {
			b := make([]byte, n)
			if n, _ = unix.Read(l.master, b); n <= 0 {
				break
			}
			_, _ = os.Stdout.Write(b[:n])
		}
		_ = master.Close()
	}
	return restore, nil
}

func runCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("run", "ID")
	var o createFlags
	o.add(f)
	detach := f.Bool("detach", false, "do not wait for the container")
	f.BoolVar(detach, "d", false, "short for --detach")
	keep := f.Bool("keep", false, "do not delete the container when it has ended")
	id, _, err := a.id(f, args)
	if err != nil {
		return err
	}
	status, err := a.runContainer(ctx, id, o, *detach, *keep)
	switch {
	case err != nil:
		return fmt.Errorf("run container %s: %w", id, err)
	case status != 0:
		return &exitError{status: status}
	}
	return nil
}

func (a *app) runContainer(ctx context.Context, id string, o createFlags, detach, keep bool) (status int, err error) {
	c, l, err := a.create(ctx, id, o, !detach)
	if err != nil {
		return 0, err
	}
	defer l.close()
	start := func() error {
		defer c.unlock()
		if err := a.start(ctx, c); err != nil {
			l.kill()
			return err
		}
		return nil
	}
	if detach {
		err = start()
	} else {
		status, err = l.foreground(ctx, start)
	}
	if err == nil && (detach || keep) {
		return status, nil
	}
	held, herr := a.open(id)
	if herr != nil {
		return status, err // another command has deleted it
	}
	defer held.unlock()
	if derr := a.delete(context.WithoutCancel(ctx), held); err == nil {
		err = derr
	}
	return status, err
}
