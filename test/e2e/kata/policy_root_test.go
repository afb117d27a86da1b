package kata

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// oneCommand is a policy for a container with one command, and denies reading its output.
const oneCommand = `package agent_policy

import rego.v1

default CloseStdinRequest := true
default CreateSandboxRequest := true
default DestroySandboxRequest := true
default GetOOMEventRequest := true
default GuestDetailsRequest := true
default RemoveContainerRequest := true
default RemoveStaleVirtiofsShareMountsRequest := true
default SignalProcessRequest := true
default StartContainerRequest := true
default StatsContainerRequest := true
default WaitProcessRequest := true
default WriteStreamRequest := true

default ReadStreamRequest := false

CopyFileRequest if startswith(input.path, "/run/kata-containers/shared/containers/")

CreateContainerRequest := {"allowed": true, "ops": [{"op": "add", "path": "/pstate/created", "value": input.container_id}]} if {
	not data.pstate.created
	print("the command is", input.OCI.Process.Args)
	input.OCI.Process.Args == ["sh", "-c", "echo secret; exit 7"]
}
`

// TestPolicyOfAPod: the shim sends the guest the policy of an annotation before anything else, and
// the guest refuses requests that the policy does not allow.
func TestPolicyOfAPod(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		run := func(id, policy, command string) result {
			t.Helper()
			return r.tryCtr(t, "", "run", "--rm", "--annotation", "io.katacontainers.config.agent.policy="+base64.StdEncoding.EncodeToString([]byte(policy)),
				"--runtime", shimV2, busybox, id, "sh", "-c", command)
		}
		if got := run("p1", oneCommand, "echo secret; exit 7"); got.code != 7 || got.out != "" {
			t.Errorf("ended with %d, output %q and %q", got.code, got.out, got.err)
		}
		if m := r.ends(t, "p1"); !m.has("SetPolicy") {
			t.Error("the shim has set no policy")
		}
		if got := run("p2", oneCommand, "echo other"); got.code == 0 || !strings.Contains(got.err, `CreateContainerRequest is blocked by policy`) || !strings.Contains(got.err, "echo other") {
			t.Errorf("another command ended with %d, output %q and %q", got.code, got.out, got.err)
		}
		if got := run("p3", "package agent_policy\nx =", "echo other"); got.code == 0 || !strings.Contains(got.err, "rego_parse_error") {
			t.Errorf("with a malformed policy it ended with %d, output %q and %q", got.code, got.out, got.err)
		}
		if source := os.Getenv("LONGSHORE_KATA_SOURCE"); source != "" {
			all, err := os.ReadFile(filepath.Join(source, "src/kata-opa/allow-all.rego"))
			if err != nil {
				t.Fatal(err)
			}
			if got := run("p4", string(all), "echo all; exit 7"); got.code != 7 || got.out != "all\n" {
				t.Errorf("with Kata's sample it ended with %d, output %q and %q", got.code, got.out, got.err)
			}
			r.ends(t, "p4")
		}
	})
}
