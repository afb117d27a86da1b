package swarm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAWorkerThatIsCutOff: when one of three workers loses its link, its tasks run on; dead ones
// are started again by their own policies, and no more often. Back, it tells the manager their
// states, and follows the manager's later orders. The other workers notice nothing.
func TestAWorkerThatIsCutOff(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		c := newCluster(t, 3)
		cut, other, third := c.workers[0], c.workers[1], c.workers[2]
		const delay = 2 * time.Second
		for _, task := range []*swarmv1.Task{
			c.task(cut, "untouched", sleeps, always), c.task(cut, "early", sleeps, always), c.task(cut, "again", sleeps, onFailure), c.task(cut, "once", sleeps, never),
			c.task(cut, "replaced", sleeps, always), c.task(cut, "forgotten", sleeps, always),
			c.task(cut, "twice", sleeps, onFailure, most(2, 0)), c.task(cut, "window", sleeps, always, most(1, time.Hour)), c.task(cut, "soon over", sleeps, always, most(1, time.Millisecond)),
			c.task(cut, "delayed", sleeps, always, func(p *swarmv1.RestartPolicy) { p.Delay = durationpb.New(delay) }),
			c.task(other, "other", sleeps, always), c.task(third, "third", sleeps, always),
		} {
			c.Assign(task)
			defer c.rises(task.GetId())
		}
		for _, id := range []string{"untouched", "early", "again", "once", "replaced", "forgotten", "twice", "window", "soon over", "delayed", "other", "third"} {
			c.Reaches(id, swarmv1.TaskState_RUNNING)
		}
		before, others := cut.containers(), []map[string]container{other.containers(), third.containers()}

		cut.Cut()
		cut.kill("early") // while the node takes the manager for reachable
		cut.starts("early", 2)
		c.GiveUp(cut.id)
		c.Want("replaced", swarmv1.TaskState_SHUTDOWN)
		c.Remove("forgotten")
		c.Assign(c.task(other, "instead", sleeps, always))
		c.Reaches("instead", swarmv1.TaskState_RUNNING)
		killed := time.Now()
		for _, id := range []string{"delayed", "again", "once", "replaced", "forgotten", "twice", "window", "soon over"} {
			cut.kill(id)
		}
		for _, id := range []string{"again", "replaced", "forgotten"} {
			cut.starts(id, 2)
		}
		for n := range 2 {
			cut.starts("twice", 2+n)
			cut.kill("twice")
			cut.starts("soon over", 2+n)
			cut.kill("soon over")
		}
		cut.starts("soon over", 4)
		cut.starts("window", 2)
		cut.kill("window")
		if e := cut.starts("delayed", 2); e.At.Sub(killed) < delay {
			t.Errorf("its policy's delay is %s, and it was started again after %s", delay, e.At.Sub(killed))
		}
		for _, id := range []string{"once", "twice", "window"} { // their ends stand
			cut.happens(id, "sandbox.stopped", 1)
		}
		alone := cut.containers()
		for _, id := range []string{"early", "again", "replaced", "forgotten", "soon over", "delayed"} {
			if now := alone[id]; now.State != "running" || now.ID == before[id].ID {
				t.Errorf("%s: %+v, before %+v", id, now, before[id])
			}
		}
		for _, id := range []string{"once", "twice", "window"} {
			if now := alone[id]; now.State != "exited" {
				t.Errorf("%s: %+v", id, now)
			}
		}
		cut.Check()
		c.Forget()

		cut.Mend()
		for id, want := range map[string]string{"early": "once", "again": "once", "delayed": "once", "soon over": "3 times"} {
			if s := c.tells(id, alone[id].ID); !strings.Contains(s.GetMessage(), "started again "+want+" by the node") || s.GetErr() != "" || int(s.GetContainer().GetPid()) != alone[id].Pid {
				t.Errorf("%s: told %v", id, s)
			}
		}
		c.tells("untouched", before["untouched"].ID)
		for _, id := range []string{"once", "twice", "window"} {
			if s := c.Reaches(id, swarmv1.TaskState_FAILED); s.GetContainer().GetExitCode() != 137 || s.GetContainer().GetContainerId() != alone[id].ID || s.GetErr() == "" {
				t.Errorf("%s: told %v", id, s)
			}
		}
		c.Reaches("replaced", swarmv1.TaskState_SHUTDOWN)
		cut.happens("forgotten", "sandbox.removed", 1)
		now := cut.containers()
		for _, id := range []string{"untouched", "early", "again", "delayed", "soon over"} {
			if had := alone[id]; now[id] != had {
				t.Errorf("%s: the return was noticed: %+v, then %+v", id, had, now[id])
			}
		}
		if now["untouched"] != before["untouched"] || now["replaced"].State != "exited" {
			t.Errorf("before %+v, now %+v", before["untouched"], now)
		}
		// From now on an end is the manager's again.
		cut.kill("again")
		if s := c.Reaches("again", swarmv1.TaskState_FAILED); s.GetContainer().GetContainerId() != alone["again"].ID {
			t.Errorf("told %v", s)
		}
		for i, w := range []*worker{other, third} {
			now := w.containers()
			for id, had := range others[i] {
				if now[id] != had {
					t.Errorf("%s: the cut was noticed: %+v, then %+v", id, had, now[id])
				}
			}
			if n := c.SessionsOf(w.id); n != 1 {
				t.Errorf("a worker with its link has had %d sessions", n)
			}
		}
		if n := c.SessionsOf(cut.id); n < 2 {
			t.Errorf("the worker has had %d sessions, and was registered anew", n)
		}
		for _, w := range c.workers {
			w.Check()
		}
	})
}

// TestAWorkerBootsWithoutAManager: a task with a restart policy comes back with its volumes;
// one that needs a secret waits until a manager gives it.
func TestAWorkerBootsWithoutAManager(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		c := newCluster(t, 1)
		w := c.workers[0]
		plain := c.task(w, "plain", "echo started >>/data/log; grep -q ' /mem tmpfs ' /proc/mounts && "+sleeps, onFailure)
		plain.GetSpec().GetContainer().Mounts = []*swarmv1.Mount{
			{Type: swarmv1.Mount_VOLUME, Target: "/data"},
			{Type: swarmv1.Mount_VOLUME, Target: "/mem", VolumeOptions: &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Options: map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=1m"}}}},
		}
		secret := c.task(w, "secret", "test -s /run/secrets/pw && "+sleeps, always)
		secret.GetSpec().GetContainer().Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "pw", Mode: 0o400}}}}
		stays := c.task(w, "stays", sleeps, never)
		c.Change(func(tasks map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
			secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte(fileSecret)}}
			for _, task := range []*swarmv1.Task{plain, secret, stays} {
				tasks[task.GetId()] = task
			}
		})
		for _, id := range []string{"plain", "secret", "stays"} {
			c.Reaches(id, swarmv1.TaskState_RUNNING)
			defer c.rises(id)
		}
		before := w.containers()
		w.Cut()
		w.PowerCut()
		c.GiveUp(w.id)
		c.Forget()
		w.Renew()
		w.Up()
		w.starts("plain", 2)
		alone := w.containers()
		if now := alone["plain"]; len(alone) != 1 || now.State != "running" || now.ID == before["plain"].ID {
			t.Errorf("before %+v, now %+v", before, alone)
		}
		w.Check()

		w.Mend()
		if s := c.tells("plain", alone["plain"].ID); !strings.Contains(s.GetMessage(), "started again once by the node") {
			t.Errorf("told %v", s)
		}
		if s := c.Reaches("stays", swarmv1.TaskState_FAILED); s.GetErr() == "" {
			t.Errorf("told %v", s)
		}
		w.starts("secret", 2)
		now := w.containers()
		c.tells("secret", now["secret"].ID)
		if len(now) != 2 || now["plain"] != alone["plain"] || now["secret"].State != "running" {
			t.Errorf("it was %+v, and is %+v", alone, now)
		}
		logs, err := filepath.Glob(filepath.Join(w.Root, "volumes/swarm/task-*/_data/log"))
		if err != nil || len(logs) != 1 {
			t.Fatalf("volumes with a log: %v, %v", logs, err)
		}
		roottest.Eventually(t, "the task has written to the same volume twice", func() bool {
			data, err := os.ReadFile(logs[0])
			if err != nil {
				t.Fatal(err)
			}
			return string(data) == "started\nstarted\n"
		})
		w.Check()
	})
}
