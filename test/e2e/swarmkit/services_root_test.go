package swarmkit

import (
	"maps"
	"testing"

	"github.com/moby/swarmkit/v2/api"
)

// TestServices of swarmkit's own manager: replicas, updates and rollbacks, one task for
// each node, secrets and configs, constraints, a pause, a drain, jobs, and their ends.
func TestServices(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, options{})
		web := r.create("web", 3, nil, "sleep", "1000")
		r.in(web, api.TaskStateRunning, 3)
		before := r.pids()
		r.scale(web, 10)
		r.in(web, api.TaskStateRunning, 10)
		now := r.pids()
		for id, pid := range before {
			if now[id] != pid {
				t.Errorf("task %s was touched: pid %d, then %d", id, pid, now[id])
			}
		}
		r.scale(web, 0)
		r.until("its tasks are gone", func() bool { return len(r.tasks(web)) == 0 && len(r.pids()) == 0 })
		r.removeService(web)

		secret, err := r.CreateSecret(t.Context(), &api.CreateSecretRequest{Spec: &api.SecretSpec{Annotations: api.Annotations{Name: "pw"}, Data: []byte("planted-secret")}})
		if err != nil {
			t.Fatal(err)
		}
		config, err := r.CreateConfig(t.Context(), &api.CreateConfigRequest{Spec: &api.ConfigSpec{Annotations: api.Annotations{Name: "motd"}, Data: []byte("a config")}})
		if err != nil {
			t.Fatal(err)
		}
		shown := r.create("shown", 1, func(_ *api.ServiceSpec, c *api.ContainerSpec) {
			c.Env = []string{"WHO={{.Service.Name}}.{{.Task.Slot}}", "V=1"}
			c.Secrets = []*api.SecretReference{{SecretID: secret.Secret.ID, SecretName: "pw", Target: &api.SecretReference_File{File: &api.FileTarget{Name: "pw", UID: "0", GID: "0", Mode: 0o400}}}}
			c.Configs = []*api.ConfigReference{{ConfigID: config.Config.ID, ConfigName: "motd", Target: &api.ConfigReference_File{File: &api.FileTarget{Name: "/etc/motd", UID: "0", GID: "0", Mode: 0o444}}}}
		}, "sh", "-c", "echo $WHO $V $(cat /run/secrets/pw /etc/motd); exec sleep 1000")
		says := func(want string) {
			t.Helper()
			r.until("a task says: "+want, func() bool {
				for _, task := range r.tasks(shown) {
					if task.Status.State == api.TaskStateRunning && r.said(task.ID) == want+"\n" {
						return true
					}
				}
				return false
			})
		}
		says("shown.1 1 planted-secreta config")
		r.update(shown, api.UpdateServiceRequest_NONE, func(s *api.ServiceSpec) { s.Task.GetContainer().Env[1] = "V=2" })
		says("shown.1 2 planted-secreta config")
		r.update(shown, api.UpdateServiceRequest_PREVIOUS, func(*api.ServiceSpec) {})
		says("shown.1 1 planted-secreta config")
		r.in(shown, api.TaskStateRunning, 1)

		each := r.create("each", 0, func(s *api.ServiceSpec, _ *api.ContainerSpec) {
			s.Mode = &api.ServiceSpec_Global{Global: &api.GlobalService{}}
		}, "sleep", "1000")
		r.in(each, api.TaskStateRunning, 1)
		job := r.create("job", 0, func(s *api.ServiceSpec, _ *api.ContainerSpec) {
			s.Mode = &api.ServiceSpec_ReplicatedJob{ReplicatedJob: &api.ReplicatedJob{MaxConcurrent: 2, TotalCompletions: 4}}
		}, "true")
		r.in(job, api.TaskStateCompleted, 4)
		bad := r.create("bad", 1, func(s *api.ServiceSpec, _ *api.ContainerSpec) {
			s.Task.Restart = &api.RestartPolicy{Condition: api.RestartOnNone}
		}, "sh", "-c", "exit 3")
		if failed := r.in(bad, api.TaskStateFailed, 1)[0]; failed.Status.GetContainer().ExitCode != 3 || failed.Status.Err == "" {
			t.Errorf("how it failed: %v", failed.Status)
		}

		// Where tasks may be.
		west := r.create("west", 1, func(s *api.ServiceSpec, _ *api.ContainerSpec) {
			s.Task.Placement = &api.Placement{Constraints: []string{"node.labels.zone==west"}}
		}, "sleep", "1000")
		r.in(west, api.TaskStatePending, 1)
		r.updateNode(func(s *api.NodeSpec) { s.Annotations.Labels = map[string]string{"zone": "west"} })
		r.in(west, api.TaskStateRunning, 1)
		r.updateNode(func(s *api.NodeSpec) { s.Availability = api.NodeAvailabilityPause })
		before = r.pids()
		r.scale(west, 2)
		r.in(west, api.TaskStatePending, 1)
		if now := r.pids(); !maps.Equal(before, now) {
			t.Errorf("the pause was noticed: %v, then %v", before, now)
		}
		r.updateNode(func(s *api.NodeSpec) { s.Availability = api.NodeAvailabilityDrain })
		r.until("everything has ended", func() bool { return len(r.pids()) == 0 })
		r.updateNode(func(s *api.NodeSpec) { s.Availability = api.NodeAvailabilityActive })
		r.in(west, api.TaskStateRunning, 2)
		for _, id := range []string{shown, each, job, bad, west} {
			r.removeService(id)
		}
		r.none()
	})
}

// updateNode changes the node's settings at the manager.
func (r *rig) updateNode(fn func(*api.NodeSpec)) {
	r.t.Helper()
	r.until("the node is changed", func() bool {
		n := r.self()
		fn(&n.Spec)
		_, err := r.UpdateNode(r.t.Context(), &api.UpdateNodeRequest{NodeID: n.ID, NodeVersion: &n.Meta.Version, Spec: &n.Spec})
		return err == nil
	})
}
