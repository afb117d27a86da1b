package composefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/subprocess"
)

// Program is the name of the program that reads files.
const Program = "longshore-compose"

// The commands of the program. The next argument is the JSON document of Options, and the output that of an Answer.
const (
	CommandLoad = "load"
	CommandLook = "look"
)

// Answer is the output of the program.
type Answer struct {
	Project *Project
	Outline *Outline
	Refused []string // settings that are not possible
	NoFile  bool     // no file was named and none was found
	Error   string
}

// RefusedError lists settings that are not possible, each with its file and line.
type RefusedError struct{ Reasons []string }

func (e *RefusedError) Error() string { return strings.Join(e.Reasons, "; ") }

// ErrNoFile means that no file was named and none was found.
var ErrNoFile = errors.New("no Compose file: neither here nor in a parent directory is a compose.yaml, compose.yml, docker-compose.yml or docker-compose.yaml; name one with -f")

// Load reads a project. stdin is the file "-". The error is a RefusedError if the files are valid and have impossible settings.
func Load(ctx context.Context, stdin io.Reader, o Options) (*Project, error) {
	a, err := run(ctx, stdin, CommandLoad, o)
	if err != nil {
		return nil, err
	}
	return a.Project, nil
}

// Look reads the outline of a project. Without a file, the outline has only the name, from the options or the environment.
func Look(ctx context.Context, stdin io.Reader, o Options) (Outline, error) {
	a, err := run(ctx, stdin, CommandLook, o)
	if err != nil || a.Outline == nil {
		return Outline{}, err
	}
	return *a.Outline, nil
}

// run runs the program.
func run(ctx context.Context, stdin io.Reader, command string, o Options) (*Answer, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := subprocess.Command(ctx, path, command, string(options))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if slices.Contains(o.Files, "-") {
		text, err := bounded(stdin)
		if err != nil {
			return nil, err
		}
		cmd.Stdin = bytes.NewReader(text)
	}
	if err := subprocess.Run(ctx, cmd); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", Program, err, strings.TrimSpace(said.String()))
	}
	var a Answer
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return nil, fmt.Errorf("the answer of %s: %w: does it have the version of longshore?", path, err)
	}
	switch {
	case a.NoFile:
		return nil, ErrNoFile
	case len(a.Refused) > 0:
		return nil, &RefusedError{a.Refused}
	case a.Error != "":
		return nil, errors.New(a.Error)
	}
	return &a, nil
}

// MaxFile bounds a Compose file and the content of a secret or config, in bytes.
const MaxFile = 16 << 20

// bounded reads a file from standard input.
func bounded(stdin io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(stdin, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	if len(text) > MaxFile {
		return nil, fmt.Errorf("standard input has more than %d bytes, too many for a Compose file", MaxFile)
	}
	return text, nil
}

// program returns the path of the program: beside this one, or in PATH.
func program() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), Program)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("%s, which reads Compose files, is neither beside longshore nor in PATH: install it", Program)
	}
	return path, nil
}
