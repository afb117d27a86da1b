// Package csi has a node's cluster volumes: it publishes them through their drivers, by the
// Container Storage Interface, and unpublishes them when no task may mount them.
//
// Each volume has a goroutine of its own while it has work, so that a hanging driver delays nobody
// else. The record of a published volume is beside it and disappears with a boot, as mounts do. It
// must not know tasks beyond their ids. Start at Volumes.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Options are the parameters of New; all but Drivers are required.
type Options struct {
	Drivers map[string]string // the path of the socket by the driver's name
	Dir     string            // of the volumes
	// Secret finds a secret of a volume. It is called without a lock held.
	Secret func(id string) (data []byte, ok bool)
	// Changed is called when a volume can be mounted, or cannot for another reason.
	Changed func(volume string)
	// Unpublished is called when a volume that the managers want back is.
	Unpublished func(volume string)
	// Described is called when a driver's answer has changed.
	Described func()
	Logger    *slog.Logger
}

// Volumes are the node's.
type Volumes struct {
	o       Options
	drivers map[string]*driver
	files   files

	mu      sync.Mutex      // guards base, list
	base    context.Context //nolint:containedctx // that of Start, which ends all calls
	list    map[string]*volume
	running sync.WaitGroup
}

// volume is one volume.
type volume struct {
	assigned *swarmv1.VolumeAssignment
	ready    bool // as it is assigned
	remove   bool // it is to be taken away, when nobody uses it
	tell     bool // the managers wait for that
	idle     bool // the managers have not sent its state yet
	users    map[string]bool
	err      error // why it is not in the wanted state
	working  bool
	again    bool               // something has changed since
	stop     context.CancelFunc // ends the call that is under way
}

// equal compares two messages; either may be nil.
func equal[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// New reads which volumes an earlier agent has published. Close it.
func New(o Options) (*Volumes, error) {
	v := &Volumes{o: o, drivers: map[string]*driver{}, files: files{o.Dir}, list: map[string]*volume{}, base: context.Background()}
	for name, socket := range o.Drivers {
		d, err := newDriver(name, socket)
		if err != nil {
			return nil, errors.Join(err, v.Close())
		}
		v.drivers[name] = d
	}
	kept, damaged, err := v.files.read()
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	for _, err := range damaged {
		o.Logger.Warn("could not read the record of a cluster volume of an earlier agent", "error", err)
	}
	for _, r := range kept {
		v.list[r.assigned.GetId()] = &volume{assigned: r.assigned, ready: r.ready, idle: true, users: map[string]bool{}, stop: func() {}}
	}
	return v, nil
}

// Close lets go of the drivers; the volumes stay as they are.
func (v *Volumes) Close() error {
	var errs []error
	for _, d := range v.drivers {
		errs = append(errs, d.conn.Close())
	}
	return errors.Join(errs...)
}

// Start has work done until ctx ends.
func (v *Volumes) Start(ctx context.Context) {
	v.mu.Lock()
	v.base = ctx
	v.mu.Unlock()
	for _, d := range v.drivers {
		v.running.Go(func() { v.watch(ctx, d) })
	}
}

// Wait returns when nothing is done any more; the context of Start must have ended.
func (v *Volumes) Wait() { v.running.Wait() }

// The intervals of queries of a driver: short until it answers.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	lookEvery    = 5 * time.Minute
)

// watch queries a driver at intervals.
func (v *Volumes) watch(ctx context.Context, d *driver) {
	wait, logged := firstPause, ""
	for {
		next := lookEvery
		changed, err := d.look(ctx)
		d.looked()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			next, wait = wait, min(2*wait, longestPause)
			if logged != err.Error() {
				logged = err.Error()
				v.o.Logger.WarnContext(ctx, "a driver of cluster volumes does not answer; will retry", "driver", d.name, "error", err)
			}
		default:
			wait, logged = firstPause, ""
		}
		if changed {
			v.o.Described()
		}
		if !sleep(ctx, next) {
			return
		}
	}
}

// Asked waits for the first query of each driver.
func (v *Volumes) Asked(ctx context.Context) {
	for _, d := range v.drivers {
		select {
		case <-d.first:
		case <-ctx.Done():
		}
	}
}

// sleep reports whether all of d has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Describe returns the answers of the drivers on this node, by name.
func (v *Volumes) Describe() (list []*swarmv1.NodeCSIInfo) {
	for _, name := range slices.Sorted(maps.Keys(v.drivers)) {
		if info := v.drivers[name].described(); info != nil {
			list = append(list, info)
		}
	}
	return list
}

// Assign publishes a volume. InvalidArgument if its id is not valid as a name.
func (v *Volumes) Assign(a *swarmv1.VolumeAssignment) error {
	if err := checkID(a.GetId()); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	vol := v.list[a.GetId()]
	if vol == nil {
		vol = &volume{users: map[string]bool{}, stop: func() {}}
		v.list[a.GetId()] = vol
	}
	if vol.remove || !equal(vol.assigned, a) {
		vol.ready = false
		vol.stop()
	}
	vol.assigned, vol.remove, vol.tell, vol.idle = proto.CloneOf(a), false, false, false
	v.kick(a.GetId())
	return nil
}

// Remove unpublishes a volume for the managers, as soon as nobody uses it, and reports it to them.
// An unknown one may have been published before a boot. InvalidArgument if its id is not valid as a
// name.
func (v *Volumes) Remove(a *swarmv1.VolumeAssignment) error {
	if err := checkID(a.GetId()); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	vol := v.list[a.GetId()]
	if vol == nil {
		vol = &volume{assigned: proto.CloneOf(a), users: map[string]bool{}, stop: func() {}}
		v.list[a.GetId()] = vol
	}
	v.drop(a.GetId(), vol)
	vol.tell = true
	return nil
}

// Keep unpublishes all volumes but these, which are the managers' complete list.
func (v *Volumes) Keep(ids map[string]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, vol := range v.list {
		if !ids[id] && !vol.remove {
			v.drop(id, vol)
		}
	}
}

// drop has a volume taken away. Preconditions: mu is held.
func (v *Volumes) drop(id string, vol *volume) {
	if !vol.remove {
		vol.stop() // a call that would publish it
	}
	vol.remove, vol.idle = true, false
	v.kick(id)
}

// Kick retries volumes that waited for a secret.
func (v *Volumes) Kick() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.list {
		v.kick(id)
	}
}

// ErrWaits is a volume that is not ready yet.
var ErrWaits = fmt.Errorf("the volume is not ready: %w", errdefs.ErrUnavailable)

// Use is the directory of a volume for a task, from now on until Release. ErrWaits says
// why there is none yet; Changed is called when that changes. InvalidArgument or
// NotImplemented: there never will be.
func (v *Volumes) Use(id, task string) (dir string, err error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	vol := v.list[id]
	switch {
	case vol == nil:
		return "", fmt.Errorf("cluster volume %s: it was not assigned to the node yet: %w", id, ErrWaits)
	case vol.remove:
		return "", fmt.Errorf("cluster volume %s: it is being removed from the node: %w", id, ErrWaits)
	case errors.Is(vol.err, errBlock):
		return "", fmt.Errorf("cluster volume %s: %w", id, vol.err)
	case !vol.ready && vol.err != nil:
		return "", fmt.Errorf("cluster volume %s: %w: %w", id, vol.err, ErrWaits)
	case !vol.ready:
		return "", fmt.Errorf("cluster volume %s: its driver makes it ready: %w", id, ErrWaits)
	}
	vol.users[task] = true
	return v.files.place(id).published, nil
}

// Took says that a task of an earlier agent uses a volume.
func (v *Volumes) Took(id, task string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if vol := v.list[id]; vol != nil {
		vol.users[task] = true
	}
}

// Release says that a task mounts nothing any more.
func (v *Volumes) Release(task string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, vol := range v.list {
		if vol.users[task] {
			delete(vol.users, task)
			v.kick(id)
		}
	}
}

// kick has a volume worked on. Preconditions: mu is held.
func (v *Volumes) kick(id string) {
	vol := v.list[id]
	switch {
	case vol.working:
		vol.again = true
	case v.base.Err() == nil:
		vol.working = true
		v.running.Go(func() { v.work(id, vol) })
	}
}

// work works on a volume until nothing is to be done for now.
func (v *Volumes) work(id string, vol *volume) {
	wait := firstPause
	for {
		v.mu.Lock()
		base := v.base
		rest := vol.idle || vol.remove && len(vol.users) > 0 || !vol.remove && vol.ready
		if vol.again = false; rest || base.Err() != nil {
			vol.working = false
			v.mu.Unlock()
			return
		}
		a, remove := vol.assigned, vol.remove
		ctx, cancel := context.WithCancel(base)
		vol.stop = cancel
		v.mu.Unlock()

		var err error
		if remove {
			err = v.undo(ctx, a)
		} else {
			err = v.publish(ctx, a)
		}
		interrupted := ctx.Err() != nil && err != nil
		cancel()
		if interrupted {
			continue // it is to be something else now
		}
		if v.worked(id, vol, a, remove, err) {
			return
		}
		if err == nil {
			wait = firstPause
			continue
		}
		if errors.Is(err, errNoSecret) || errors.Is(err, errBlock) {
			v.mu.Lock()
			if !vol.again {
				vol.working = false
				v.mu.Unlock()
				return
			}
			v.mu.Unlock()
			continue
		}
		v.o.Logger.WarnContext(ctx, "could not publish or unpublish a cluster volume; will retry", "volume", id, "removed", remove, "error", err)
		if !sleep(base, wait) {
			continue
		}
		wait = min(2*wait, longestPause)
	}
}

// worked stores the result of work on a volume, and reports whether the volume is gone.
func (v *Volumes) worked(id string, vol *volume, a *swarmv1.VolumeAssignment, removed bool, err error) (gone bool) {
	v.mu.Lock()
	news := false
	tell := false
	switch {
	case err != nil:
		news = vol.err == nil || vol.err.Error() != err.Error()
		vol.err = err
	case removed && vol.remove:
		delete(v.list, id)
		gone, tell = true, vol.tell
	case removed: // and wanted again
		vol.err = nil
	case !vol.remove && vol.assigned == a:
		vol.err, vol.ready, news = nil, true, true
	}
	v.mu.Unlock()
	if news {
		v.o.Changed(id)
	}
	if tell {
		v.o.Unpublished(id)
	}
	return gone
}

// errNoSecret is the error of a volume without a secret that the managers have not sent yet.
var errNoSecret = errors.New("a secret of it was not assigned to the node")

// driver finds that of a volume.
func (v *Volumes) driver(a *swarmv1.VolumeAssignment) (*driver, error) {
	d := v.drivers[a.GetDriver().GetName()]
	if d == nil {
		return nil, fmt.Errorf("this node has no CSI driver %q (face.swarm.csi): %w", a.GetDriver().GetName(), errdefs.ErrNotFound)
	}
	return d, nil
}

// publish publishes a volume. It records it before, so that it is unpublished after any failure.
func (v *Volumes) publish(ctx context.Context, a *swarmv1.VolumeAssignment) error {
	if err := check(a); err != nil {
		return err
	}
	d, err := v.driver(a)
	if err != nil {
		return err
	}
	secrets := map[string]string{}
	for _, s := range a.GetSecrets() {
		data, ok := v.o.Secret(s.GetSecret())
		if !ok {
			return errNoSecret
		}
		secrets[s.GetKey()] = string(data)
	}
	if err := v.files.write(record{assigned: a}); err != nil {
		return err
	}
	at, err := v.files.prepare(a.GetId())
	if err != nil {
		return err
	}
	if err := d.publish(ctx, a, at, secrets); err != nil {
		return err
	}
	return v.files.write(record{assigned: a, ready: true})
}

// undo takes a volume away, and then its record.
func (v *Volumes) undo(ctx context.Context, a *swarmv1.VolumeAssignment) error {
	if check(a) != nil {
		return v.files.remove(a.GetId()) // it was never published
	}
	d, err := v.driver(a)
	if err != nil {
		return err
	}
	// From now on it is not ready.
	if err := v.files.write(record{assigned: a}); err != nil {
		return err
	}
	if err := d.unpublish(ctx, a, v.files.place(a.GetId())); err != nil {
		return err
	}
	return v.files.remove(a.GetId())
}

// Clear unpublishes all volumes, also used ones; Start's context must have ended. A volume stays,
// with an error, if its driver does not answer.
func (v *Volumes) Clear(ctx context.Context) error {
	v.Wait()
	v.mu.Lock()
	list := maps.Clone(v.list)
	v.mu.Unlock()
	var group sync.WaitGroup
	errs := make(chan error, len(list))
	for id, vol := range list {
		group.Go(func() {
			err := v.undo(ctx, vol.assigned)
			if err != nil {
				errs <- fmt.Errorf("cluster volume %s: %w", id, err)
				return
			}
			v.mu.Lock()
			delete(v.list, id)
			v.mu.Unlock()
		})
	}
	group.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
