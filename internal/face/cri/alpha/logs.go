package alpha

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// The log of a program with argdata begins and ends with a line of the runtime's own; that of an ordinary
// container has its lines alone, because clients compare them. The keeper writes the program's lines,
// after the launch and before the end is recorded. So these two lines are written here, the last one
// once, even if agent or keeper die meanwhile.
const (
	logStarted = "--- Logging started"
	logStopped = "--- Logging stopped: Pipe closed by container"
)

type logs struct {
	log *slog.Logger

	mu    sync.Mutex // guards ended; it is held while a last line is written
	ended map[core.ID]bool
}

func line(text string) []byte {
	return []byte(time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z") + " stderr " + text + "\n")
}

// framed reports whether a container's log has lines of the runtime's own.
func framed(c *core.Container) bool { return c.Config.Runtime == core.GrantHandler }

// begin empties a container's log and writes its first line. The log's directory must exist.
func (l *logs) begin(c *core.Container) error {
	for _, s := range c.Config.IO.Sinks {
		f, err := openLog(s, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("log directory %s does not exist", path.Dir(s.Path))
		}
		if err != nil {
			return fmt.Errorf("log: %w", err)
		}
		if framed(c) {
			_, err = f.Write(line(logStarted))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	return nil
}

// end writes the last line of the log of a container that has run and ended, unless the log has it.
func (l *logs) end(c *core.Container) {
	if c.State != core.ContainerExited || c.Main.Started.IsZero() || !framed(c) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended[c.ID] {
		return
	}
	l.ended[c.ID] = true
	for _, s := range c.Config.IO.Sinks {
		if err := endLog(s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.log.Warn("could not write the last line of a container's log", "container", c.ID, "log", s.Path, "error", err)
		}
	}
}

func (l *logs) forget(id core.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ended, id)
}

func endLog(s core.Sink) (err error) {
	f, err := openLog(s, unix.O_RDWR|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	last, err := lastLine(f)
	if err != nil {
		return err
	}
	if bytes.HasSuffix(last, []byte(" stderr "+logStopped+"\n")) {
		return nil
	}
	text := line(logStopped)
	if len(last) > 0 && !bytes.HasSuffix(last, []byte{'\n'}) {
		text = append([]byte{'\n'}, text...)
	}
	_, err = f.Write(text)
	return err
}

// lastLine returns the end of a file: its last line, or the end of one that is longer than ours.
func lastLine(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const most = 256
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-most), most))
	if err != nil {
		return nil, err
	}
	if i := bytes.LastIndexByte(bytes.TrimSuffix(b, []byte{'\n'}), '\n'); i >= 0 {
		b = b[i+1:]
	}
	return b, nil
}

// Run ends the logs of containers that end, until ctx does. Those that have ended before are
// handled first.
func (s *Server) Run(ctx context.Context) {
	all := func(context.Context) error {
		list, err := s.o.Engine.Stored.Containers()
		for _, c := range list {
			s.logs.end(c)
		}
		return err
	}
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerRemoved}, List: all,
		Event: func(_ context.Context, e core.Event) error {
			if e.Kind == core.EventContainerRemoved {
				s.logs.forget(e.Container)
			} else if c, err := s.o.Engine.Stored.Container(e.Container); err == nil {
				s.logs.end(c)
			}
			return nil
		},
		Failed: func(err error) {
			s.o.Logger.WarnContext(ctx, "could not follow the ends of containers; will retry", "error", err)
		},
	}
	_ = w.Run(ctx, s.o.Engine)
}
