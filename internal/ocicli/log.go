package ocicli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
)

// logger writes messages in the format that callers of runc read: conmon and
// containerd's shim take the last message of level error as the reason of a failure.
type logger struct {
	file  *os.File // nil for no log
	json  bool
	debug bool
}

func (l *logger) open(path, format string, debug bool) error {
	switch format {
	case "text", "":
	case "json":
		l.json = true
	default:
		return fmt.Errorf("--log-format %q: want text or json: %w", format, errdefs.ErrInvalidArgument)
	}
	l.debug = debug
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	l.file = f
	return nil
}

// fail reports why the command fails, in the log and on stderr.
func (l *logger) fail(stderr io.Writer, err error) {
	l.write("error", err.Error())
	switch {
	case l.file != nil: // a caller that reads the log adds its own prefix
		_, _ = fmt.Fprintln(stderr, err)
	case l.json:
		_, _ = stderr.Write(l.line("error", err.Error()))
	default:
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", Name, err)
	}
}

// warn reports something that the command has to do without.
func (l *logger) warn(format string, args ...any) { l.write("warning", fmt.Sprintf(format, args...)) }

// debugf reports a step; only with --debug.
func (l *logger) debugf(format string, args ...any) {
	if l.debug {
		l.write("debug", fmt.Sprintf(format, args...))
	}
}

func (l *logger) write(level, msg string) {
	switch {
	case l.file != nil:
		_, _ = l.file.Write(l.line(level, msg))
	case l.debug && level != "error":
		_, _ = os.Stderr.Write(l.line(level, msg))
	}
}

func (l *logger) line(level, msg string) []byte {
	now := time.Now().UTC().Format(time.RFC3339)
	if !l.json {
		return fmt.Appendf(nil, "time=%q level=%s msg=%q\n", now, level, msg)
	}
	b, err := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{level, msg, now})
	if err != nil {
		return nil
	}
	return append(b, '\n')
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
