package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// maxWords is how much of a runtime's output goes into an error.
const maxWords = 2048

// explain returns the error of a failed launch in the program's own words: its log, or else its
// output.
func (r *Runtime) explain(op, logFile string, err error) error {
	var failed *core.CommandError
	if !errors.As(err, &failed) {
		return fmt.Errorf("%s: %s: %w", op, r.o.Name, err)
	}
	words := lastWords(logFile)
	if words == "" {
		words = failed.Stderr
	}
	return startFailure(op, r.o.Name, failed.Status, words)
}

// startFailure is failure for a run that was to start a program. It returns a
// core.StartError if executing the program was refused.
func startFailure(op, name string, status int, stderr string) error {
	err := failure(op, name, status, stderr)
	if errno := execErrno(stderr); errno != 0 {
		return &core.StartError{Errno: errno, Err: err}
	}
	return err
}

// startedBefore reports whether a start may have failed because of an earlier one: crun then finds
// that the FIFO for releasing the program is gone.
func startedBefore(err error) bool {
	return errdefs.IsFailedPrecondition(err) || strings.Contains(err.Error(), "exec.fifo")
}

// execErrno returns the errno of a refused execve, or 0 if something else failed. Runtimes report
// it neither as an exit status nor as a field of their logs, so this function, and no other, reads
// it from their messages.
func execErrno(words string) syscall.Errno {
	w := strings.ToLower(words)
	switch {
	case regexp.MustCompile(aboutProgram + `(not found in|no such file)`).MatchString(w):
		return syscall.ENOENT
	case regexp.MustCompile(aboutProgram + `(permission denied|is a directory|exec format error)|open executable: operation not permitted`).MatchString(w):
		return syscall.EACCES
	}
	return 0
}

const aboutProgram = `(executable|exec(ve)?\b|start the program)[^\n]*`

// failure is the error of a run that ended with a status other than 0.
func failure(op, name string, status int, stderr string) error {
	words := plain(stderr)
	if words == "" {
		words = "it said nothing"
	}
	class := classify(words)
	if class == nil {
		class = errdefs.ErrUnknown
	}
	return fmt.Errorf("%s: %s: exit status %d: %s: %w", op, name, status, words, class)
}

// lastWords returns the messages of a runtime's JSON log in their order, the worst
// usually last; "" if there are none.
func lastWords(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var words []string
	for line := range bytes.Lines(b) {
		var entry struct {
			Level string `json:"level"`
			Msg   string `json:"msg"`
		}
		if json.Unmarshal(line, &entry) != nil {
			if s := strings.TrimSpace(string(line)); s != "" {
				words = append(words, s)
			}
			continue
		}
		if entry.Level == "error" || entry.Level == "fatal" {
			words = append(words, strings.TrimSpace(entry.Msg))
		}
	}
	return clip(strings.Join(words, "; "))
}

// plain turns a program's output into one line.
func plain(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	return clip(strings.Join(lines, "; "))
}

func clip(s string) string {
	if len(s) > maxWords {
		s = "…" + strings.ToValidUTF8(s[len(s)-maxWords:], "")
	}
	return s
}

// classify returns the error class of a runtime's message, or nil if it does not know
// it.
func classify(words string) error {
	w := strings.ToLower(words)
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(w, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no space left on device", "cannot allocate memory", "too many open files",
		"resource temporarily unavailable", "too many levels of nested"):
		return errdefs.ErrResourceExhausted
	case has("not running", "is not stopped", "not in the created state", "already running", "cannot start a container that",
		"not paused", "is paused", "cannot pause", "cannot exec in a"):
		return errdefs.ErrFailedPrecondition
	case has("does not exist", "not found", "no such file or directory", "no such process"):
		return errdefs.ErrNotFound
	case has("permission denied", "operation not permitted"):
		return errdefs.ErrPermissionDenied
	case has("is a directory", "exec format error", "invalid argument", "unknown capability", "not a directory",
		"unknown version", "invalid", "cannot parse", "numerical result out of range"):
		return errdefs.ErrInvalidArgument
	case has("already exists", "already exist", "id already in use"):
		return errdefs.ErrAlreadyExists
	default:
		return nil
	}
}
