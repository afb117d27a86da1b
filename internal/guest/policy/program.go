package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/subprocess"
)

// nobody is the user and group of the program.
const nobody = 65534

// maxOutput bounds the kept output of the program besides its answers, in bytes.
const maxOutput = 4 << 10

// child is longshore-policy as a process. It implements program.
type child struct {
	cmd      *exec.Cmd
	to, from *os.File // its standard input and output
	said     head
	gone     chan struct{} // closed when it was reaped
	how      error         // set before gone is closed
}

// startProgram starts longshore-policy without rights, network, environment or directory of
// its own. It takes the rest from itself before it reads anything.
func startProgram(ctx context.Context, path string, log *slog.Logger) (_ program, err error) {
	in, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), to.Close())
	}
	c := &child{to: to, from: from, gone: make(chan struct{})}
	// It ends with the gate, not with the call that made it start.
	c.cmd = subprocess.Command(context.WithoutCancel(ctx), path)
	c.cmd.Env, c.cmd.Dir = []string{}, "/"
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in, out, &c.said
	if os.Geteuid() == 0 {
		c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		c.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC
	}
	err = c.cmd.Start()
	err = errors.Join(err, in.Close(), out.Close())
	if c.cmd.Process == nil {
		return nil, errors.Join(fmt.Errorf("start longshore-policy: %w", err), to.Close(), from.Close())
	}
	go func() {
		c.how = c.cmd.Wait()
		close(c.gone)
	}()
	if err != nil {
		return nil, errors.Join(err, c.End())
	}
	log.DebugContext(ctx, "longshore-policy started", "pid", c.cmd.Process.Pid)
	return c, nil
}

// Read implements io.Reader.
func (c *child) Read(p []byte) (int, error) { return c.from.Read(p) }

// Write implements io.Writer.
func (c *child) Write(p []byte) (int, error) { return c.to.Write(p) }

// SetDeadline implements program.
func (c *child) SetDeadline(t time.Time) error {
	return errors.Join(c.to.SetWriteDeadline(t), c.from.SetReadDeadline(t))
}

// Gone implements program.
func (c *child) Gone() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// End implements program.
func (c *child) End() error {
	_ = c.to.Close()
	_ = c.from.Close()
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.gone
	err := c.how
	if err == nil {
		return nil
	}
	if said, _, _ := strings.Cut(string(c.said), "\n"); said != "" { // a trace follows it
		err = fmt.Errorf("%w: %s", err, printable(said))
	}
	return err
}

// head keeps the first part of its input, where a runtime writes why it failed.
type head []byte

// Write implements io.Writer.
func (t *head) Write(p []byte) (int, error) {
	*t = append(*t, p[:min(len(p), maxOutput-len(*t))]...)
	return len(p), nil
}
