package cri

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const crictlEnv = "CRICTL"

// TestMain builds crictl, as pinned in tools/crictl, where CRICTL does not name
// one. It happens here because the tests themselves have no network. It is also
// the program of containers that write.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == logWriterArg {
		os.Exit(logWriter(os.Args[2:]))
	}
	if os.Getenv(roottest.Env) != "1" || os.Getenv(crictlEnv) != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "crictl-")
	if err == nil {
		err = build(filepath.Join(dir, "crictl"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build crictl:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(to string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-modfile=tools/crictl/go.mod", "-o", to, "sigs.k8s.io/cri-tools/cmd/crictl")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.Setenv(crictlEnv, to)
}

// tool is crictl against one node.
type tool struct {
	t   *testing.T
	bin string
	n   *nodetest.Node
	// stdin is crictl's input; nil is none.
	stdin io.Reader
}

func newTool(t *testing.T, n *nodetest.Node) tool {
	t.Helper()
	c := tool{t: t, bin: os.Getenv(crictlEnv), n: n}
	// YAML is a superset of JSON.
	c.file("crictl.yaml", map[string]any{"runtime-endpoint": "unix://" + filepath.Join(n.State, "cri.sock"), "timeout": 30})
	return c
}

// try runs crictl and returns its output.
func (c tool) try(args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin, append([]string{"--config", filepath.Join(c.n.Dir, "crictl.yaml")}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.n.Dir)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// run is try, must succeed, and returns the trimmed output.
func (c tool) run(args ...string) string {
	c.t.Helper()
	out, errs, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("crictl %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return strings.TrimSpace(out)
}

// json runs crictl and reads its output into v.
func (c tool) json(v any, args ...string) {
	c.t.Helper()
	out := c.run(args...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		c.t.Fatalf("crictl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// file writes a config for crictl.
func (c tool) file(name string, v any) string {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	p := filepath.Join(c.n.Dir, name)
	if err := os.WriteFile(p, b, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return p
}
