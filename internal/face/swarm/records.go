package swarm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/restart"
	"github.com/longshore/longshore/internal/face/swarm/session"
)

// records are the face's stored state: the tasks with their last reported statuses, and the
// managers' addresses. It contains no secret.
type records struct{ kv core.KV }

const (
	managersKey   = "managers"
	periodKey     = "heartbeat"
	taskPrefix    = "task/"
	restartPrefix = "restart/"
)

// putTask keeps a task with its status. Its registry's credentials are left out, and the options
// of its volumes, which may have passwords: they come again with the next assignments. A volume that may have options
// keeps its driver, which worker.checkVolumes reads.
func (r records) putTask(t *swarmv1.Task) error {
	kept := proto.CloneOf(t)
	if c := kept.GetSpec().GetContainer(); c != nil {
		c.PullOptions = nil
		for _, m := range c.GetMounts() {
			if d := m.GetVolumeOptions().GetDriverConfig(); d != nil {
				d.Options = nil
			}
		}
	}
	data, err := proto.Marshal(kept)
	if err == nil {
		err = r.kv.Put(taskPrefix+t.GetId(), data)
	}
	if err != nil {
		return fmt.Errorf("keep task %s: %w", t.GetId(), err)
	}
	return nil
}

// dropTask forgets a task: first that it is the node's, so that no agent that comes later
// takes it for one.
func (r records) dropTask(id string) error {
	for _, prefix := range []string{taskPrefix, restartPrefix} {
		if err := r.kv.Delete(prefix + id); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("forget task %s: %w", id, err)
		}
	}
	return nil
}

// putRestarts stores the restarts of a task.
func (r records) putRestarts(id string, h restart.History) error {
	data, err := json.Marshal(h)
	if err == nil {
		err = r.kv.Put(restartPrefix+id, data)
	}
	if err != nil {
		return fmt.Errorf("keep the restarts of task %s: %w", id, err)
	}
	return nil
}

// dropRestarts forgets the restarts of tasks that the node does not have.
func (r records) dropRestarts(has func(task string) bool) error {
	var errs []error
	for key := range r.kv.All(restartPrefix) {
		if id := strings.TrimPrefix(key, restartPrefix); !has(id) {
			errs = append(errs, r.dropTask(id))
		}
	}
	return errors.Join(errs...)
}

// restarts returns the restarts of a task; none if the record cannot be read.
func (r records) restarts(id string) (h restart.History) {
	data, err := r.kv.Get(restartPrefix + id)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return restart.History{}
	}
	return h
}

// tasks returns the stored tasks. Unreadable ones are left out: the managers will send them again.
func (r records) tasks() (list []*swarmv1.Task, damaged []string) {
	for key, data := range r.kv.All(taskPrefix) {
		t := &swarmv1.Task{}
		if err := proto.Unmarshal(data, t); err != nil || taskPrefix+t.GetId() != key {
			damaged = append(damaged, strings.TrimPrefix(key, taskPrefix))
			continue
		}
		list = append(list, t)
	}
	return list, damaged
}

func (r records) putManagers(list []session.Peer) error {
	data, err := json.Marshal(list)
	if err == nil {
		err = r.kv.Put(managersKey, data)
	}
	if err != nil {
		return fmt.Errorf("keep the managers' addresses: %w", err)
	}
	return nil
}

// putPeriod keeps the time between two heartbeats.
func (r records) putPeriod(d time.Duration) error {
	if err := r.kv.Put(periodKey, []byte(d.String())); err != nil {
		return fmt.Errorf("keep the time between heartbeats: %w", err)
	}
	return nil
}

// period is the time between two heartbeats that was kept last; 0 when none was, or when it
// cannot be read.
func (r records) period() time.Duration {
	data, err := r.kv.Get(periodKey)
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(string(data))
	if err != nil {
		return 0
	}
	return max(d, 0)
}

func (r records) managers() (list []session.Peer, err error) {
	data, err := r.kv.Get(managersKey)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read the managers' addresses: %w", err)
	}
	return list, nil
}

// clear forgets everything.
func (r records) clear() error {
	var keys []string
	for key := range r.kv.All("") {
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := r.kv.Delete(key); err != nil {
			return fmt.Errorf("forget the swarm: %w", err)
		}
	}
	return nil
}
