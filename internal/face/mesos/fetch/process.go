package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/weaken"
)

// maxOutput limits how much output of the process is kept.
const maxOutput = 64 << 10

// pipe stores the data of a stream.
func (f Fetcher) pipe(ctx context.Context, job store.Job, from io.ReadCloser, box *os.File) (int64, error) {
	if file, ok := from.(*os.File); ok { // a cached file
		return f.runStore(ctx, job, file, box)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		// A write fails with EPIPE if the process has ended; its result says why.
		if _, err := io.Copy(w, &sourceReader{Reader: from, broken: cancel}); err == nil || errors.Is(err, syscall.EPIPE) {
			_ = w.Close()
		}
	}()
	n, err := f.runStore(ctx, job, r, box)
	// Nobody reads the rest.
	_, _, _ = r.Close(), w.Close(), from.Close()
	<-copied
	return n, err
}

// sourceReader stops the storing process if reading fails, because the process would
// take a truncated stream for a complete one.
type sourceReader struct {
	io.Reader
	broken context.CancelCauseFunc
}

// Read implements io.Reader.
func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.broken(err)
	}
	return n, err
}

// runStore runs the storing process, and returns how many bytes it wrote.
func (f Fetcher) runStore(ctx context.Context, job store.Job, from, box *os.File) (int64, error) {
	arg, err := json.Marshal(job)
	if err != nil {
		return 0, err
	}
	command := f.Command
	if command == nil {
		command = []string{"/proc/self/exe", store.Arg} // the running program, even if its file was replaced
	}
	cmd := subprocess.Command(ctx, command[0], append(command[1:len(command):len(command)], string(arg))...)
	cmd.Env = append([]string{"PATH=/nonexistent", "HOME=/nonexistent", "GOTRACEBACK=single"}, weaken.Environ()...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{from, box}
	stdin, err := cmd.StdinPipe() // open while the agent lives
	if err != nil {
		return 0, err
	}
	defer func() { _ = stdin.Close() }()
	out, why := &subprocess.Head{Max: maxOutput}, &subprocess.Head{Max: maxOutput}
	cmd.Stdout, cmd.Stderr = out, why
	err = subprocess.Run(ctx, cmd)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	var r store.Result
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &r)
	}
	if err != nil {
		return 0, fmt.Errorf("the storing process failed: %w: %s", err, why.Line())
	}
	if r.Error != "" {
		return 0, errors.New(r.Error)
	}
	return min(max(r.Written, 0), job.Limit), nil
}
