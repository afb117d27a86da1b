package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/subprocess"
)

const (
	// standard are the arguments of ps if the client has none.
	standard = "-ef"
	// maxArgs bounds a client's arguments of ps, and maxOutput the output of ps, in bytes.
	maxArgs   = 1 << 10
	maxOutput = 8 << 20
)

// top lists the processes of a container as ps prints them.
func (s *Server) top(w http.ResponseWriter, r *dockerhttp.Request) error {
	c, err := s.Container(r.Context(), r.Vars["id"])
	if err != nil {
		return err
	}
	args, err := arguments(r.Get("ps_args"))
	if err != nil {
		return err
	}
	if s.HidesEnv != nil && s.HidesEnv(r.Context()) && strings.Join(args, " ") != standard {
		return errdefs.ErrPermissionDenied.WithMessage("this socket lists processes without ps_args only, because ps can print environments")
	}
	switch {
	case c.Restarting():
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("Container %s is restarting, wait until the container is running", c.ID))
	case !c.State.Live():
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is not running", c.ID))
	}
	pids, err := s.Engine.Stats.Cgroups.Pids(r.Context(), c.Cgroup)
	if err != nil {
		return fmt.Errorf("list the processes of container %s: %w", c.ID, err)
	}
	list, err := list(r.Context(), args, pids)
	if err != nil {
		return err
	}
	s.Publish("container", "top", string(c.ID), nil)
	return dockerhttp.Reply(w, http.StatusOK, list)
}

// renamed finds columns of ps that a client names PID, such as in -o comm=PID. They would be taken for the process's id.
var renamed = regexp.MustCompile(`(^|[\s,])([^\s,=]*)=\s*(PID[^\s,]*)`) //nolint:gochecknoglobals // compiled once

// arguments returns the arguments of ps from those of a request.
func arguments(text string) ([]string, error) {
	if len(text) > maxArgs {
		return nil, invalid.Plainf("ps_args has %d bytes, at most %d", len(text), maxArgs)
	}
	if strings.ContainsRune(text, 0) {
		return nil, invalid.Plainf("ps_args has a zero byte")
	}
	for _, m := range renamed.FindAllStringSubmatch(text, -1) {
		if m[2] != "pid" {
			return nil, invalid.Plainf("specifying %q is not allowed", m[2]+"="+m[3])
		}
	}
	if args := strings.Fields(text); len(args) > 0 {
		return args, nil
	}
	return []string{standard}, nil
}

// list runs ps for some processes. Some of its options, such as f, exclude a list of processes: then it prints all, and the
// others are left out.
func list(ctx context.Context, args []string, pids []int) (dockertypes.Top, error) {
	var numbers []string
	for _, p := range pids {
		numbers = append(numbers, strconv.Itoa(p))
	}
	var out []byte
	err := errors.New("no process") // ps needs one
	if len(numbers) > 0 {
		out, err = ps(ctx, append(slices.Clone(args), "-q", strings.Join(numbers, ",")))
	}
	if err != nil {
		if out, err = ps(ctx, args); err != nil {
			return dockertypes.Top{}, err
		}
	}
	return parse(out, pids)
}

// ps runs the node's ps. The error is the first line of its standard error.
func ps(ctx context.Context, args []string) ([]byte, error) {
	cmd := subprocess.Command(ctx, "ps", args...)
	stdout, stderr := &subprocess.Head{Max: maxOutput}, &subprocess.Head{Max: 4 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	err := subprocess.Run(ctx, cmd)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("the node has no ps, which lists processes: install procps: %w", err)
	case err != nil && ctx.Err() == nil && stderr.Line() != "":
		return nil, errors.New("ps: " + strings.TrimPrefix(stderr.Line(), "ps: "))
	case err != nil:
		return nil, fmt.Errorf("ps: %w", err)
	case stdout.Truncated():
		return nil, fmt.Errorf("ps printed more than %d bytes", maxOutput)
	}
	return stdout.Bytes(), nil
}

// parse reads the output of ps and returns the lines of some processes. Lines without a process's id belong to the line above
// them: ps prints the threads of a process so.
func parse(out []byte, pids []int) (dockertypes.Top, error) {
	head, rest, _ := bytes.Cut(out, []byte("\n"))
	t := dockertypes.Top{Titles: fields(head), Processes: [][]string{}}
	column := slices.Index(t.Titles, "PID")
	if column < 0 {
		return t, errors.New("Couldn't find PID field in ps output") //nolint:staticcheck // dockerd's words
	}
	above := false
	for line := range bytes.Lines(rest) {
		f := fields(line)
		if len(f) <= column {
			continue
		}
		if f[column] == "-" {
			if above {
				t.Processes = append(t.Processes, row(f, len(t.Titles)))
			}
			continue
		}
		pid, err := strconv.Atoi(f[column])
		if err != nil {
			return t, fmt.Errorf("unexpected pid %q in the output of ps", f[column])
		}
		if above = slices.Contains(pids, pid); above {
			t.Processes = append(t.Processes, row(f, len(t.Titles)))
		}
	}
	return t, nil
}

// row returns a line of ps in columns. The last one, a command line, may have spaces.
func row(f []string, columns int) []string {
	if len(f) <= columns {
		return f
	}
	return append(f[:columns-1:columns-1], strings.Join(f[columns-1:], " "))
}

// fields splits a line at ASCII's spaces, because arguments of programs may have others.
func fields(line []byte) []string {
	return strings.FieldsFunc(string(bytes.ToValidUTF8(line, []byte("?"))), func(r rune) bool { return strings.ContainsRune("\t\n\f\r\v ", r) })
}
