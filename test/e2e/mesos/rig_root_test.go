package mesos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// The agent's address, and its client's credentials.
const (
	address   = "127.0.0.1:5051"
	principal = "ops"
	secret    = "s3cret"
)

type object = map[string]any

// rig is an agent that serves the API by TCP, as Mesos' agents do, and a tool beside
// it.
type rig struct {
	*nodetest.Node
	t     *testing.T
	tool  string
	image string
	dir   string
}

// start runs body on a rig, or skips without the tool that env names.
func start(t *testing.T, env string, body func(r *rig)) {
	t.Helper()
	tool := os.Getenv(env)
	if tool == "" {
		t.Skipf("needs a tool of Mesos': set %s to its program", env)
	}
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		credentials := filepath.Join(dir, "credentials")
		if err := os.WriteFile(credentials, []byte(principal+" "+secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[face.mesos]\nenabled = true\nlisten = %q\ncredentials = %q\n", address, credentials)})
		r := &rig{Node: n, t: t, tool: tool, image: n.Busybox(t), dir: dir}
		body(r)
		n.Check()
	})
}

// call posts a call and wants a 200.
func (r *rig) call(kind string, payload object) string {
	r.t.Helper()
	body, err := json.Marshal(object{"type": kind, strings.ToLower(kind): payload})
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://"+address+"/api/v1", bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth(principal, secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %d %q, %v", body, resp.StatusCode, text, err)
	}
	return string(text)
}

// launch starts a container of the image; parent is "" for a standalone one.
func (r *rig) launch(parent, name, command string, tty bool) {
	r.t.Helper()
	container := object{"type": "MESOS", "mesos": object{"image": object{"type": "DOCKER", "docker": object{"name": r.image}}}}
	if tty {
		container["tty_info"] = object{}
	}
	r.call("LAUNCH_CONTAINER", object{"container_id": named(parent, name), "container": container, "command": object{"value": command}})
}

func named(parent, name string) object {
	id := object{"value": name}
	if parent != "" {
		id["parent"] = object{"value": parent}
	}
	return id
}

// end kills a standalone container and removes it.
func (r *rig) end(name string) {
	r.t.Helper()
	r.call("KILL_CONTAINER", object{"container_id": named("", name)})
	r.call("WAIT_CONTAINER", object{"container_id": named("", name)})
	r.call("REMOVE_CONTAINER", object{"container_id": named("", name)})
}

// command is the Mesos command line with a configuration that has the agent for its
// master too: it asks a master where agents and tasks are.
func (r *rig) command(ctx context.Context, args ...string) *exec.Cmd {
	r.t.Helper()
	config := filepath.Join(r.dir, "config.toml")
	text := fmt.Sprintf("[master]\naddress = %q\nprincipal = %q\nsecret = %q\n[agent]\nprincipal = %q\nsecret = %q\ntimeout = 60\n", address, principal, secret, principal, secret)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, r.tool, args...)
	cmd.Env = append(os.Environ(), "MESOS_CLI_CONFIG="+config)
	return cmd
}

// said is the output and exit code of a program.
type said struct {
	code     int
	out, err string
}

// mesos runs the command line with this for its input.
func (r *rig) mesos(stdin io.Reader, args ...string) said {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*roottest.Patience())
	defer cancel()
	cmd := r.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		r.t.Fatalf("mesos %s: %v", strings.Join(args, " "), err)
	}
	return said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}
