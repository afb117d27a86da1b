package swarm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/assignment"
	"github.com/longshore/longshore/internal/face/swarm/csi"
)

// volumes opens the node's cluster volumes as an agent has left them.
func (f *Face) volumes(o csi.Options) (*csi.Volumes, error) {
	o.Drivers, o.Dir, o.Logger = f.o.Config.CSI, filepath.Join(f.o.State, "volumes"), f.log
	v, err := csi.New(o)
	if err != nil {
		return nil, fmt.Errorf("cluster volumes: %w", err)
	}
	return v, nil
}

// clearVolumes takes all cluster volumes away. Tasks that could use one must be gone.
func (f *Face) clearVolumes(ctx context.Context) error {
	v, err := f.volumes(csi.Options{Changed: func(string) {}, Unpublished: func(string) {}, Described: func() {}})
	if err != nil {
		return err
	}
	return errors.Join(v.Clear(ctx), v.Close())
}

// openVolumes opens those of the worker.
func (w *worker) openVolumes(described func()) (err error) {
	w.volumes, err = w.face.volumes(csi.Options{Secret: w.secret, Changed: w.volumeChanged, Unpublished: w.reports.Unpublished, Described: described})
	return err
}

// secret finds a secret that a volume needs.
func (w *worker) secret(id string) (data []byte, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.set.Secret(id, "")
	return s.GetSpec().GetData(), s != nil
}

// volumeChanged steps the tasks that wait for a volume.
func (w *worker) volumeChanged(volume string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, t := range w.tasks {
		for _, v := range t.swarm.GetVolumes() {
			if v.GetId() == volume {
				w.kick(id)
			}
		}
	}
}

// changeVolumes applies a message to the cluster volumes. Preconditions: mu is held.
func (w *worker) changeVolumes(c assignment.Change) {
	named := map[string]bool{}
	ignore := func(err error) {
		if err != nil {
			w.log.Warn("ignored an assignment", "error", err)
		}
	}
	for _, v := range c.VolumesRemoved {
		named[v.GetId()] = true
		ignore(w.volumes.Remove(v))
	}
	for _, v := range c.Volumes {
		named[v.GetId()] = true
		w.reports.Published(v.GetId())
		ignore(w.volumes.Assign(v))
	}
	if c.Complete {
		w.volumes.Keep(named)
	}
	w.volumes.Kick() // one may wait for a secret of this message
}

// useVolumes marks cluster volumes as used by a task, and returns their directories.
func (w *worker) useVolumes(task string, volumes []string) (dirs map[string]string, err error) {
	dirs = map[string]string{}
	for _, v := range volumes {
		if dirs[v], err = w.volumes.Use(v, task); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// releaseVolumes releases a task's cluster volumes if it has no container that could mount
// them.
func (w *worker) releaseVolumes(ctx context.Context, s *swarmv1.Task) {
	if len(s.GetVolumes()) == 0 {
		return
	}
	if _, err := w.engine.ContainerByKey(context.WithoutCancel(ctx), core.Key(s.GetId())); errdefs.IsNotFound(err) {
		w.volumes.Release(s.GetId())
	}
}

// resumeVolumes marks the volumes of a task of an earlier agent as used.
func (w *worker) resumeVolumes(ctx context.Context, s *swarmv1.Task) {
	c, err := w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
	if errdefs.IsNotFound(err) || err == nil && c.State == core.ContainerExited {
		return
	}
	for _, v := range s.GetVolumes() {
		w.volumes.Took(v.GetId(), s.GetId())
	}
}
