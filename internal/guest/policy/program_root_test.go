package policy

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/roottest"
)

// TestProgramHasNoRights, because longshore-policy reads strangers' text.
func TestProgramHasNoRights(t *testing.T) { roottest.Run(t, programHasNoRights) }

func programHasNoRights(t *testing.T) {
	t.Helper()
	bin := os.Getenv("LONGSHORE_BIN")
	if bin == "" {
		t.Skip("LONGSHORE_BIN is not set")
	}
	ctx := t.Context()
	g := New(Options{Program: func() (string, error) { return filepath.Join(bin, "longshore-policy"), nil }, Logger: slog.New(slog.DiscardHandler)})
	defer g.Close()
	const text = `package agent_policy
WaitProcessRequest { data.pstate.seen }
CreateContainerRequest = {"allowed": true, "ops": [{"op": "add", "path": "/pstate/seen", "value": true}]}
StatsContainerRequest {
	long := concat("", ["0" | numbers.range(1, 65536)[_]])
	count(replace(long, "0", long)) < 0
}
`
	if err := g.Load(ctx, text); err != nil {
		t.Fatal(err)
	}
	c, ok := g.running.(*child)
	if !ok {
		t.Fatalf("what runs is %T", g.running)
	}
	proc := fmt.Sprintf("/proc/%d/", c.cmd.Process.Pid)
	b, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	status := strings.ReplaceAll(string(b), "\t", " ")
	for _, want := range []string{
		"Uid: 65534 65534 65534 65534\n", "Gid: 65534 65534 65534 65534\n", "Groups:  \n", "CapInh: 0000000000000000\n", "CapPrm: 0000000000000000\n",
		"CapEff: 0000000000000000\n", "NoNewPrivs: 1\n", "Seccomp: 2\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("it has not %q:\n%s", want, status)
		}
	}
	for _, ns := range []string{"net", "ipc"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if its, err := os.Readlink(proc + "ns/" + ns); err != nil || its == own {
			t.Errorf("it shares the namespace %s with the agent: %v", ns, err)
		}
	}
	if env, err := os.ReadFile(proc + "environ"); err != nil || len(env) > 0 {
		t.Errorf("it has the environment %q, %v", env, err)
	}
	limits, err := os.ReadFile(proc + "limits")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max data size 536870912 536870912") {
		t.Errorf("its limits are %s, %v", limits, err)
	}
	if files, err := os.ReadDir(proc + "fd"); err != nil || len(files) > 16 {
		t.Errorf("it has %d files, %v", len(files), err)
	}

	ask := func(request string) error { return asks(ctx, g, request, []byte("{}")) }
	if err := ask("WaitProcessRequest"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("before there is a container: %v", err)
	}
	if err := ask("CreateContainerRequest"); err != nil {
		t.Error(err)
	}
	// A request with an evaluation that takes all memory ends the program, and is denied.
	if err := ask("StatsContainerRequest"); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "could not be asked") {
		t.Errorf("an evaluation that takes all memory: %.300v", err)
	} else {
		t.Logf("it ended so: %.500v", err)
	}
	if err := ask("WaitProcessRequest"); err != nil {
		t.Errorf("after that: %v", err)
	}
	// So is it when somebody kills it.
	c, ok = g.running.(*child)
	if !ok {
		t.Fatalf("what runs is %T", g.running)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.gone
	if err := ask("WaitProcessRequest"); err != nil {
		t.Errorf("after it was killed: %v", err)
	}
}
