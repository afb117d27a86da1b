package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/checkpoint/criurun"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/subprocess"
)

// MinVersion is the oldest major version of a CRIU that is found in $PATH.
const MinVersion = 4

// probeTime bounds the question for CRIU's version.
const probeTime = 20 * time.Second

// probe finds CRIU. It keeps the result while the program's file stays the same.
type probe struct {
	program string

	mu    sync.Mutex // guards found, err, stamp
	found string
	err   error
	stamp string
}

func (p *probe) path(ctx context.Context) (string, error) {
	path := p.program
	if path == "" {
		path = "criu"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return "", fmt.Errorf("criu is not installed: %w", errdefs.ErrNotFound)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	stamp := fmt.Sprint(path, st.ModTime(), st.Size())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stamp == stamp {
		return p.found, p.err
	}
	found, err := check(ctx, path, p.program == "")
	if ctx.Err() == nil {
		p.found, p.err, p.stamp = found, err, stamp
	}
	return found, err
}

// environment is that of CRIU, which runs other programs.
func environment() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"} }

// check asks a CRIU for its version.
func check(ctx context.Context, path string, checked bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	out := &subprocess.Head{Max: 4 << 10}
	cmd := subprocess.Command(ctx, path, "--version")
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(), out, out
	if err := subprocess.Run(ctx, cmd); err != nil {
		return "", fmt.Errorf("%s --version: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	_, after, _ := strings.Cut(out.String(), "Version: ")
	major, _, _ := strings.Cut(after, ".")
	n, err := strconv.Atoi(strings.TrimSpace(major))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s --version: %s: %w", path, out.Line(), errdefs.ErrFailedPrecondition)
	case checked && n < MinVersion:
		return "", fmt.Errorf("%s has the version %s, and %d or newer is needed; checkpoint.program can name an older one: %w", path, strings.TrimSpace(firstLine(after)), MinVersion, errdefs.ErrFailedPrecondition)
	}
	return filepath.Abs(path)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// The names of CRIU's external resources.
const (
	netName = "longshore-net"
	pidName = "longshore-pid"
)

func mountName(i int) string { return "m" + strconv.Itoa(i) }

// fileName is the form of CRIU's names of files and terminals outside of the container.
var fileName = regexp.MustCompile(`^file\[[0-9a-f]{1,8}:[0-9a-f]{1,16}\]$`)

// streamFD returns the descriptor of a stream in the process that becomes CRIU.
func streamFD(stream string) string {
	return map[string]string{"stdin": "0", "stdout": "1", "stderr": "2", "null": "/dev/null"}[stream]
}

// lockFile is locked while CRIU works on a container.
const lockFile = "lock"

// newWork makes the directory for a call of CRIU.
func (c *Checkpointer) newWork(id core.ID) (string, error) {
	dir := c.work(id)
	if err := os.MkdirAll(c.o.State, 0o700); err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}

// command writes a job and returns the command that executes it.
func (c *Checkpointer) command(work string, j criurun.Job) (core.Command, error) {
	j.Lock, j.Env = filepath.Join(work, lockFile), environment()
	b, err := json.Marshal(j)
	if err != nil {
		return core.Command{}, err
	}
	path := filepath.Join(work, "job")
	if err := atomicfile.Replace(path, b, 0o600); err != nil {
		return core.Command{}, err
	}
	return core.Command{Args: append(append([]string{}, c.o.Command...), path), Env: environment()}, nil
}

// failure returns the error of a failed CRIU by its log.
func failure(op, log string, err error) error {
	class := error(errdefs.ErrFailedPrecondition)
	why := reasons(log)
	var ran *core.CommandError
	switch {
	case errors.As(err, &ran) && why == "":
		why = firstLine(strings.TrimSpace(ran.Stderr))
	case err != nil && why == "":
		return fmt.Errorf("%s: %w", op, err)
	}
	if strings.Contains(why, "No space left") {
		class = errdefs.ErrResourceExhausted
	}
	if why == "" {
		why = "no reason is in its log"
	}
	return fmt.Errorf("%s: CRIU: %s: %w", op, why, class)
}

// maxLog bounds how much of a log is read, and maxReasons how much of it goes into an error.
const (
	maxLog     = 8 << 20
	maxReasons = 3
)

var logLine = regexp.MustCompile(`^(?:\([0-9.]+\)\s+)?(?:[0-9]+: )?Error \([^)]*\): (.*)$`)

// harmless are errors in CRIU's log that are none.
var harmless = []string{"tun: Unable to create tun", "rlimit: Can't setup RLIMIT_NOFILE", "cg: cgroupd: recv req error", "exited, status="} //nolint:gochecknoglobals // a list

// reasons returns the first errors in a log.
func reasons(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() > maxLog {
		_, _ = f.Seek(st.Size()-maxLog, 0)
	}
	b := make([]byte, maxLog)
	n, _ := readFull(f, b)
	var list []string
next:
	for line := range bytes.Lines(b[:n]) {
		m := logLine.FindSubmatch(bytes.TrimSpace(line))
		if m == nil || len(list) == maxReasons {
			continue
		}
		for _, h := range harmless {
			if strings.Contains(string(m[1]), h) {
				continue next
			}
		}
		text := string(m[1])
		if len(text) > 300 {
			text = strings.ToValidUTF8(text[:300], "")
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

func readFull(f *os.File, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = f.Read(b[n:])
		n += more
	}
	return n, err
}
