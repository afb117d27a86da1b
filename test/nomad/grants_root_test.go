package nomad

import (
	"strings"
	"testing"
	"time"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATaskHoldsWhatItsBlockGrants: the block grants of a job's task, its secrets and its end.
func TestATaskHoldsWhatItsBlockGrants(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		grants := func(document string) map[string]any {
			return map[string]any{"grants": map[string]any{"document": document}}
		}
		for name, c := range map[string]struct{ document, want string }{
			"secret": {"{key: !secret key, greeting: hello}", "argument {\"greeting\":\"hello\",\"key\":{\"fd\":4}}\nroot /*\nline open sesame\n"},
			"none":   {"{greeting: hello}", "argument {\"greeting\":\"hello\"}\nroot /*\nline \n"},
			"env":    {"{id: !env NOMAD_TASK_NAME}", "argument {\"id\":\"env\"}\nroot /*\nline \n"},
		} {
			r.write(name+"/secrets/key", "open sesame\n")
			if out, result := r.said(r.given(name, nodetest.GrantedScript, grants(c.document))); out != c.want || result.GetExitCode() != 9 {
				t.Errorf("%s: it ended with %v: %q", name, result, out)
			}
		}
		if out, _ := r.said(r.given("plain", nodetest.GrantedScript, nil)); !strings.Contains(out, "argument \nroot /alloc /bin") {
			t.Errorf("an ordinary task: %q", out)
		}
		stopped := r.given("web", nodetest.ExampleScript, grants(nodetest.Example(t)))
		r.start(stopped)
		r.log(nodetest.ExampleSays + "given log\n")
		r.stop(stopped, "SIGTERM", time.Hour)
		if w := r.wait(stopped.GetId()); w.GetResult().GetExitCode() != 5 || w.GetResult().GetSignal() != 0 {
			t.Errorf("it ended with %v", w.GetResult())
		}
		r.destroy(stopped)
		for document, text := range map[string]string{
			"{x: !mount /etc}":              `line 1, column 5: Unknown volume mount "/etc"`,
			"{x: !secret ../../other/key}":  "line 1, column 5: unknown secret",
			"{x: !mount /alloc/../secrets}": `without "." and ".."`,
			"{x: [":                         "line 1",
			"{x: !mount {path: /alloc, rights: [read, write]}}": "gives read,execute",
		} {
			_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("refused", nodetest.GrantedScript, grants(document))})
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", document, err)
			}
		}
		r.Check()
	})
}
