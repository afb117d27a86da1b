package swarm_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// withVolume has a task mount a volume; one without a name goes with the task.
func withVolume(t *swarmv1.Task, name, target string, options map[string]string) *swarmv1.Task {
	m := &swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: name, Target: target}
	if options != nil {
		m.VolumeOptions = &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Options: options}}
	}
	c := t.GetSpec().GetContainer()
	c.Mounts = append(c.Mounts, m)
	return t
}

// volumes are those of the swarm's tasks.
func (r *rig) volumes() []core.Volume {
	r.t.Helper()
	list, err := r.As(core.OwnerSwarm).Volumes.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// TestABootKeepsTheVolumesOfTasks: a returning task finds its files in its volumes without a name,
// and those with options have them; a removed task removes them.
func TestABootKeepsTheVolumesOfTasks(t *testing.T) {
	r := newRig(t)
	r.join()
	task := restarting("a", always)
	withVolume(task, "", "/data", nil)
	withVolume(task, "", "/mem", map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=1m"})
	r.running(task)
	before := r.volumes()
	r.cut()
	r.boots()
	r.startedAgain("a", 1)
	if diff := cmp.Diff(before, r.volumes()); diff != "" || len(before) != 2 {
		t.Errorf("volumes after the boot:\n%s", diff)
	}
	r.Remove("a")
	r.back()
	r.gone("a")
	roottest.Eventually(t, "its volumes are removed", func() bool { return len(r.volumes()) == 0 })
}

// TestAVolumeThatIsGoneWaits: the record of a task has no options of volumes, which may have a
// password. A volume with some that is gone is made when a manager has said them again; one
// without is made at once.
func TestAVolumeThatIsGoneWaits(t *testing.T) {
	r := newRig(t)
	r.join()
	const password = "planted-password"
	share := map[string]string{"type": "cifs", "device": "//127.0.0.1/share", "o": "username=u,password=" + password}
	r.running(withVolume(restarting("share", always), "share", "/data", share))
	r.running(withVolume(restarting("plain", always), "plain", "/data", nil))
	for key, value := range r.kv.All("") {
		if strings.Contains(string(value), password) {
			t.Errorf("%s has the password", key)
		}
	}
	r.cut()
	for _, name := range []string{"share", "plain"} {
		if err := r.Volumes.Remove(t.Context(), core.OwnerSwarm, name); err != nil {
			t.Fatal(err)
		}
	}
	r.boots()
	r.startedAgain("plain", 1)
	roottest.Eventually(t, "the restart of the other has begun", func() bool {
		data, err := r.kv.Get("restart/share")
		return err == nil && strings.Contains(string(data), `"pending":true`)
	})
	r.back()
	c := r.startedAgain("share", 1)
	r.tells("share", c)
	i := slices.IndexFunc(r.volumes(), func(v core.Volume) bool { return v.Name == "share" })
	if i < 0 || r.volumes()[i].Options["type"] != "cifs" {
		t.Errorf("volumes %+v", r.volumes())
	}
}

// TestTheManagersPeriodIsKept: the node stores the period for a boot without a manager.
func TestTheManagersPeriodIsKept(t *testing.T) {
	r := newRig(t)
	r.Period = 5 * time.Second // another than the node assumes
	r.join()
	roottest.Eventually(t, "the period is kept", func() bool {
		data, err := r.kv.Get("heartbeat")
		return err == nil && string(data) == "5s"
	})
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key := range r.kv.All("") {
		t.Errorf("%s is kept", key)
	}
}
