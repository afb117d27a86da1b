package swarm

import (
	"strings"
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATaskHoldsWhatItsLabelGrants: a container label is the document, the Swarm's secrets are its secrets, and its end asks !shutdown.
func TestATaskHoldsWhatItsLabelGrants(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.swarm]\nenabled = true\n"})
		ref, m := n.Busybox(t), swarmtest.New(t)
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		m.Change(func(_ map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, configs map[string]*swarmv1.Config) {
			secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("open sesame\n")}}
			configs["c"] = &swarmv1.Config{Id: "c", Spec: &swarmv1.ConfigSpec{Data: []byte("of a config\n")}}
		})
		task := func(id, document, script string) *swarmv1.Task {
			task := swarmtest.Task(id, ref, "sh", "-c", script)
			c := task.GetSpec().GetContainer()
			c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "pw", Mode: 0o400}}}}
			c.Configs = []*swarmv1.ConfigReference{{ConfigId: "c", ConfigName: "conf", Target: &swarmv1.ConfigReference_File{File: &swarmv1.FileTarget{Name: "/conf", Mode: 0o444}}}}
			if document != "" {
				c.Labels = map[string]string{core.GrantAnnotation: document}
			}
			return task
		}
		logged := func(id, want string) {
			t.Helper()
			out := ""
			defer func() {
				if t.Failed() {
					t.Logf("%s: %q", id, out)
				}
			}()
			nodetest.Eventually(t, id+" says "+want, func() bool {
				out, _ = n.CLI("logs", id)
				return strings.Contains(out, want)
			})
		}
		for id, c := range map[string]struct{ document, want string }{
			"by-name": {"{key: !secret pw, greeting: hello}", "argument {\"greeting\":\"hello\",\"key\":{\"fd\":4}}\nroot /*\nline open sesame\n"},
			"by-path": {"{key: !secret /run/secrets/pw}", "argument {\"key\":{\"fd\":4}}\nroot /*\nline open sesame\n"},
			"plain":   {"", "argument \nroot /bin"},
		} {
			m.Assign(task(id, c.document, nodetest.GrantedScript))
			if st := m.Reaches(id, swarmv1.TaskState_FAILED); st.GetContainer().GetExitCode() != 9 {
				t.Errorf("%s: %v", id, st)
			}
			logged(id, c.want)
		}
		m.Assign(task("config", "{key: !secret /conf}", nodetest.GrantedScript))
		if st := m.Reaches("config", swarmv1.TaskState_REJECTED); !strings.Contains(st.GetErr(), `line 1, column 7: unknown secret "/conf"`) {
			t.Errorf("a config as a secret: %v", st)
		}
		m.Assign(task("stopped", nodetest.Example(t), nodetest.ExampleScript))
		m.Reaches("stopped", swarmv1.TaskState_RUNNING)
		logged("stopped", nodetest.ExampleSays+"given log\n")
		m.Want("stopped", swarmv1.TaskState_SHUTDOWN)
		if st := m.Reaches("stopped", swarmv1.TaskState_SHUTDOWN); st.GetContainer().GetExitCode() != 5 {
			t.Errorf("stopped: %v", st)
		}
		logged("stopped", "asked")
	})
}
