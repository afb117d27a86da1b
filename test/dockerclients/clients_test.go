// Package dockerclients_test has the clients that people use with Docker's API drive a node: Debian's
// command line, docker-compose and docker-py, and dockerode.
package dockerclients_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// hostIP is the address of the test's host besides loopback.
const hostIP = "10.96.0.1"

// rig is a node with the Docker Engine API, and a registry that has Docker Hub's name for it.
type rig struct {
	t        *testing.T
	node     *nodetest.Node
	dir      string // the clients' home and working directory
	socket   string
	closed   string // a registry that accepts no password
	program  string // the docker that run calls
	registry string
	hub      *imagetest.Registry // the same registry
}

// start runs an agent with further lines of [face.docker]. A registry of the test serves busybox under Docker Hub's name.
func start(t *testing.T, lines ...string) *rig {
	t.Helper()
	nodetest.Bridge(t, "clients0", hostIP+"/24")
	registry, closed := serve(t), serve(t)
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	registry.Push("library/busybox", "latest", built)
	closed.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("WWW-Authenticate", `Basic realm="closed"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"unauthorized"}]}`)
	})
	dir, err := os.MkdirTemp("", "longshore-clients-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for host, server := range map[string]string{"docker.io": registry.Host, closed.Host: closed.Host} {
		name := filepath.Join(dir, "certs", host, "hosts.toml")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, fmt.Appendf(nil, "server = \"http://%s\"\n", server), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{t: t, dir: dir, socket: filepath.Join(dir, "docker.sock"), closed: closed.Host, registry: registry.Host, hub: registry}
	r.node = nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(
		"[images]\nregistry_config = [%q]\n[face.docker]\nenabled = true\nsocket = %q\n%s\n", filepath.Join(dir, "certs"), r.socket, strings.Join(lines, "\n"))})
	return r
}

// serve starts a registry on loopback.
func serve(t *testing.T) *imagetest.Registry {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	return registry
}

// command is a client that talks to the node.
func (r *rig) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+r.socket, "HOME="+r.dir, "COMPOSE_ANSI=never", "NO_PROXY=*", "no_proxy=*")
	return cmd
}

// output runs a client with this input to its end, and returns its exit code and its output.
func (r *rig) output(input, name string, args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), roottest.Patience())
	defer cancel()
	cmd := r.command(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		r.t.Fatalf("%s %q: %v\n%s%s", filepath.Base(name), args, err, &out, &errs)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// run runs docker with this input, which must succeed, and returns its standard output without the last line's end.
func (r *rig) run(input string, args ...string) string {
	r.t.Helper()
	code, out, errs := r.output(input, r.program, args...)
	if code != 0 {
		r.t.Fatalf("docker %q: exit code %d\n%s%s", args, code, out, errs)
	}
	return strings.TrimSuffix(out, "\n")
}

// docker is run without input.
func (r *rig) docker(args ...string) string {
	r.t.Helper()
	return r.run("", args...)
}

// shows asserts that docker writes exactly this.
func (r *rig) shows(want string, args ...string) {
	r.t.Helper()
	if got := r.docker(args...); got != want {
		r.t.Errorf("docker %q: %q, want %q", args, got, want)
	}
}

// matches asserts that the text that docker writes has a match of the regular expression.
func (r *rig) matches(want string, args ...string) {
	r.t.Helper()
	if got := r.docker(args...); !regexp.MustCompile(want).MatchString(got) {
		r.t.Errorf("docker %q: %q, want %s", args, got, want)
	}
}

// fails asserts that docker exits with this code and says this on standard error.
func (r *rig) fails(code int, want string, args ...string) {
	r.t.Helper()
	got, out, errs := r.output("", r.program, args...)
	if got != code || !strings.Contains(errs, want) {
		r.t.Errorf("docker %q: exit code %d and %q, want %d and %q\n%s", args, got, errs, code, want, out)
	}
}

// empty asserts that the node has no containers, volumes or networks of users', and that its records agree with the kernel.
func (r *rig) empty() {
	r.t.Helper()
	for _, path := range []string{"/containers/json?all=1", "/volumes", "/networks?filters=%7B%22type%22%3A%5B%22custom%22%5D%7D"} {
		if got := r.get(path); got != "[]\n" && !strings.HasPrefix(got, `{"Volumes":[],`) && !strings.HasPrefix(got, `{"Volumes":null,`) {
			r.t.Errorf("%s at the end: %s", path, got)
		}
	}
	r.node.Check()
}

// get reads a document of the API.
func (r *rig) get(path string) string {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}}}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %s, %v: %s", path, resp.Status, err, body)
	}
	return string(body)
}

// session is a client in the background.
type session struct {
	r     *rig
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // pieces of its output
	text  strings.Builder
}

// begin starts a client in the background. Its standard output and standard error are one stream.
func (r *rig) begin(name string, args ...string) *session {
	r.t.Helper()
	s := &session{r: r, lines: make(chan string)}
	s.cmd = r.command(r.t.Context(), name, args...)
	read, write, err := os.Pipe()
	if err == nil {
		s.input, err = s.cmd.StdinPipe()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = write, write
	err = s.cmd.Start()
	_ = write.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		defer func() { _ = read.Close() }()
		buf := make([]byte, 4096)
		for {
			n, err := read.Read(buf)
			if err != nil {
				return
			}
			s.lines <- string(buf[:n])
		}
	}()
	return s
}

// terminal starts docker on a terminal.
func (r *rig) terminal(args ...string) *session {
	r.t.Helper()
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return r.begin("script", "-qec", r.program+" "+strings.Join(quoted, " "), "/dev/null")
}

// reads waits until the output that was not yet read contains a text, and returns the output before the text.
func (s *session) reads(want string) string {
	s.r.t.Helper()
	ctx, cancel := context.WithTimeout(s.r.t.Context(), roottest.Patience())
	defer cancel()
	for {
		if before, after, ok := strings.Cut(s.text.String(), want); ok {
			s.text.Reset()
			s.text.WriteString(after)
			return before
		}
		select {
		case piece, ok := <-s.lines:
			if !ok {
				s.r.t.Fatalf("%q ended without %q: %q", s.cmd.Args, want, s.text.String())
			}
			s.text.WriteString(piece)
		case <-ctx.Done():
			s.r.t.Fatalf("%q does not write %q: %q", s.cmd.Args, want, s.text.String())
		}
	}
}

// writes sends input.
func (s *session) writes(text string) {
	s.r.t.Helper()
	if _, err := io.WriteString(s.input, text); err != nil {
		s.r.t.Fatal(err)
	}
}

// ends waits for the client's end and returns its exit code, and the rest of its output.
func (s *session) ends() (code int, rest string) {
	s.r.t.Helper()
	ctx, cancel := context.WithTimeout(s.r.t.Context(), roottest.Patience())
	defer cancel()
	for {
		select {
		case piece, ok := <-s.lines:
			if !ok {
				_ = s.input.Close()
				_ = s.cmd.Wait()
				return s.cmd.ProcessState.ExitCode(), s.text.String()
			}
			s.text.WriteString(piece)
		case <-ctx.Done():
			s.r.t.Fatalf("%q does not end: %q", s.cmd.Args, s.text.String())
		}
	}
}
