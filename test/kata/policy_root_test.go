package kata

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// guarded is a policy of a pod with one container, of a fixed command and secret output.
const guarded = `package agent_policy

import rego.v1

default CreateSandboxRequest := true
default StartContainerRequest := true
default WaitProcessRequest := true
default RemoveContainerRequest := true
default DestroySandboxRequest := true
default ReadStreamRequest := false
default SetPolicyRequest := false

CreateContainerRequest := {"allowed": true, "ops": [{"op": "add", "path": "/pstate/created", "value": input.container_id}]} if {
	not data.pstate.created
	some mount in input.OCI.Mounts
	mount.type_ == "proc"
	print("the command is", input.OCI.Process.Args)
	input.OCI.Process.Args[2] == "echo secret; exit 7"
}

CopyFileRequest if {
	input.file_type == "Regular"
	startswith(input.path, "/run/kata-containers/shared/containers/")
}
`

// TestPolicy: a policy that the shim sets decides about its later requests.
func TestPolicy(t *testing.T) { roottest.Run(t, policyDecides) }

func policyDecides(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	a := start(t)
	if _, err := a.SetPolicy(ctx, &katav1.SetPolicyRequest{Policy: "package agent_policy\nx ="}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "policy:2") {
		t.Errorf("a malformed policy: %v", err)
	}
	if _, err := a.SetPolicy(ctx, &katav1.SetPolicyRequest{Policy: guarded}); err != nil {
		t.Fatal(err)
	}
	a.sandbox(t)
	denied := func(what string, err error, want string) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	create := func(id, script string) error {
		_, err := a.CreateContainer(ctx, &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: a.spec(script)})
		return err
	}
	denied("another command", create("c0", "echo other"), `CreateContainerRequest is blocked by policy: the policy has no rule for it, or one that is undefined. the command is ["/bin/sh", "-c", "echo other"]`)
	if err := create("c1", "echo secret; exit 7"); err != nil {
		t.Fatal(err)
	}
	denied("a second container", create("c2", "echo secret; exit 7"), "blocked by policy")
	_, err := a.ExecProcess(ctx, &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: a.spec("id").GetProcess()})
	denied("exec", err, "ExecProcessRequest is blocked by policy")
	_, err = a.SetPolicy(ctx, &katav1.SetPolicyRequest{Policy: "package agent_policy\ndefault ExecProcessRequest := true"})
	denied("another policy", err, "SetPolicyRequest is blocked by policy")
	_, err = a.CopyFile(ctx, &katav1.CopyFileRequest{Path: "/run/kata-containers/shared/containers/l", FileMode: 0o120777, Data: []byte("/etc")})
	denied("a link", err, "CopyFileRequest is blocked by policy")
	if _, err := a.health.Check(ctx, &katav1.CheckRequest{}); err != nil {
		t.Errorf("Check: %v", err)
	}
	if _, err := a.StartContainer(ctx, &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
		t.Fatal(err)
	}
	if out, err := a.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: "c1", Len: 100}); err != nil || len(out.GetData()) > 0 {
		t.Errorf("the output is %q, %v", out.GetData(), err)
	}
	if w, err := a.WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: "c1"}); err != nil || w.GetStatus() != 7 {
		t.Errorf("%v, %v", w, err)
	}
	done := a.gone(t)
	if _, err := a.DestroySandbox(ctx, &katav1.DestroySandboxRequest{}); err != nil {
		t.Fatal(err)
	}
	<-done
}

// TestPolicyFile: an image's policy decides from the beginning, and an agent that cannot
// have it does not start.
func TestPolicyFile(t *testing.T) { roottest.Run(t, policyFile) }

func policyFile(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.rego"), filepath.Join(dir, "bad.rego")
	for file, text := range map[string]string{good: guarded, bad: "package agent_policy\nx ="} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := start(t, "--policy", good)
	if _, err := a.GetMetrics(ctx, &katav1.GetMetricsRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("what it does not mention: %v", err)
	}
	whole := filepath.Join(nodetest.Bin(t), "longshore-guest")
	program, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "longshore-guest")
	if err := os.WriteFile(alone, program, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ program, file, want string }{
		{whole, bad, bad + ": policy: "},
		{whole, filepath.Join(dir, "none"), "no such file"},
		{alone, good, "longshore-policy is neither beside " + alone},
	} {
		cmd := exec.CommandContext(ctx, tt.program, "--listen", "unix://"+filepath.Join(dir, "no.sock"), "--state", filepath.Join(dir, "state"), "--policy", tt.file)
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(tt.want)) {
			t.Errorf("%s with %s: %v, %s; want %q", tt.program, tt.file, err, out, tt.want)
		}
	}
}
