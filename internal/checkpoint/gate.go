package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// gate stops a restore before its processes run. CRIU executes a script at this moment: it writes the pid of CRIU and that of the first
// process to a FIFO, and waits for an answer of the agent. If a process has more rights than the container, the agent kills
// the container's cgroup with CRIU and the script.
type gate struct {
	script    string
	asks      *os.File
	answer    string // its FIFO gets a line when the processes may run
	answering *os.File
}

// The names of the FIFOs in the work directory, and of the script beside the checkpoint. The work directory may be mounted without
// the permission to execute files.
const (
	askFile    = "asks"
	answerFile = "answer"
	scriptFile = "gate"
)

// quote quotes a path for a shell.
func quote(path string) string { return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'" }

func newGate(dir, work string) (*gate, error) {
	g := &gate{script: filepath.Join(dir, scriptFile), answer: filepath.Join(work, answerFile)}
	asks := filepath.Join(work, askFile)
	text := "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = pre-resume ] || exit 0\necho \"$PPID $CRTOOLS_INIT_PID\" 1<>" + quote(asks) +
		"\nuntil read -r answer <" + quote(g.answer) + "; do [ -e " + quote(g.answer) + " ] || exit 1; done\n" // without an agent it waits
	if err := atomicfile.Replace(g.script, []byte(text), 0o700); err != nil {
		return nil, err
	}
	for _, path := range []string{asks, g.answer} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
		}
	}
	var err error
	if g.asks, err = os.OpenFile(asks, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return nil, err
	}
	if g.answering, err = os.OpenFile(g.answer, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return nil, errors.Join(err, g.asks.Close())
	}
	return g, nil
}

func (g *gate) close() error {
	return errors.Join(g.asks.Close(), g.answering.Close(), os.Remove(g.script))
}

// errUnused is the error of a gate at which CRIU did not wait.
var errUnused = fmt.Errorf("CRIU did not wait before its processes ran: is there a /bin/sh? %w", errdefs.ErrFailedPrecondition) //nolint:gochecknoglobals // an error value

// serve waits for CRIU, examines the processes, and answers.
func (g *gate) serve(examine func(criu, first int) error) error {
	line, err := bufio.NewReader(g.asks).ReadString('\n')
	if errors.Is(err, os.ErrClosed) {
		return errUnused
	}
	var criu, first int
	if err == nil {
		_, err = fmt.Sscan(line, &criu, &first)
	}
	if err == nil {
		err = examine(criu, first)
	}
	if err != nil {
		return err
	}
	_, err = g.answering.WriteString("pass\n")
	return err
}

// launchChecked launches CRIU, and kills everything in the container's cgroup if the processes have more rights than its spec.
func (c *Checkpointer) launchChecked(ctx context.Context, g *gate, launch core.CommandLaunch, ct *core.Container, examine func(criu, first int) error) (pid int, err error) {
	checked := make(chan error, 1)
	go func() {
		err := g.serve(examine)
		if err != nil && !errors.Is(err, errUnused) {
			err = errors.Join(err, c.o.Cgroups.Kill(context.WithoutCancel(ctx), ct.Cgroup))
		}
		checked <- err
	}()
	made, err := c.o.Launcher.LaunchCommand(ctx, launch)
	err = errors.Join(err, g.close())
	gateErr := <-checked
	switch {
	case gateErr != nil && (err == nil || !errors.Is(gateErr, errUnused)):
		return 0, gateErr
	case err != nil:
		return 0, err
	}
	return made.Pid, nil
}
