// Package survey compares the records with the node and with the keeper's processes. Each finding
// has the repair that makes the two agree; the caller decides which repairs to run. Start at
// Node.Take.
package survey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/volumes"
)

// Node has the records, and the parts of the node that are compared with them.
type Node struct {
	Records    scope.Records
	Runtimes   []core.Runtime
	Supervisor core.Supervisor
	Images     core.Images
	Network    core.Network
	Pinner     core.Pinner
	Cgroups    core.Cgroups
	Roots      core.Roots
	Volumes    *volumes.Table
	Sleeper    core.Sleeper // may be nil
	State      string       // the directory below which mounts are looked for
	Bundles    string       // has a directory for each container and each init
	Sandboxes  string       // has a directory for each sandbox
	Repairs    Repairs
}

// Repairs is the part of the engine that a survey needs: its processes without a record, and the
// repairs that take more than one port.
type Repairs interface {
	// Quiet returns the processes without a record that the engine knows.
	Quiet() map[core.Ref]core.Process
	// Stray reports whether nobody waits for an exec and no record names it.
	Stray(ref core.Ref) bool
	// EndStray ends a process without a record. c is its container; nil when there is no record.
	EndStray(ctx context.Context, ref core.Ref, p core.Supervised, c *core.Container) error
	// Lose records the end of a process that nobody watched. agentLived means that this agent has
	// run since before.
	Lose(ctx context.Context, c *core.Container, process core.ProcessID, agentLived bool) error
	// LoseQuiet is Lose for a process without a record.
	LoseQuiet(ctx context.Context, ref core.Ref) error
	// Complete completes the create of a container whose main process may already have run.
	Complete(ctx context.Context, c *core.Container, pid int) error
	// Kill kills everything in a container.
	Kill(ctx context.Context, c *core.Container) error
	// RemoveContainer removes a container in which nothing runs.
	RemoveContainer(ctx context.Context, c *core.Container) error
	// Unrenew kills an ended container that was not completely made ready to start again, and makes
	// it an ended one again.
	Unrenew(ctx context.Context, c *core.Container) error
	// RemoveBundle removes a bundle that no record names.
	RemoveBundle(ctx context.Context, id core.ID) error
	// EndSandbox stops a sandbox with everything in it.
	EndSandbox(ctx context.Context, sb *core.Sandbox, why string) error
	// ReleaseSandbox releases the namespaces and the network of a sandbox.
	ReleaseSandbox(ctx context.Context, sb *core.Sandbox) error
	// RemoveSandbox removes a released sandbox.
	RemoveSandbox(ctx context.Context, sb *core.Sandbox) error
	// RemoveSandboxDir removes the directory of a sandbox without a record.
	RemoveSandboxDir(ctx context.Context, id core.ID) error
}

// Violation is one disagreement between records, events and node.
type Violation struct {
	Kind   string // unfinished, lost, missing, orphan, damaged, events
	Object string // "container 3f…", "cgroup /longshore/…"
	Detail string
}

func (v Violation) String() string { return v.Kind + " " + v.Object + ": " + v.Detail }

// Finding is one disagreement. Repair may be nil.
type Finding struct {
	Violation
	Orphan  bool    // something without a record
	Sandbox core.ID // its sandbox, which has the lock that protects it, if any
	Ref     core.Ref
	Repair  func(ctx context.Context) error
}

// Survey has the state of the node and the records, read in this order, so that an object removed
// meanwhile is not taken for one without a record.
type Survey struct {
	n         *Node
	checkouts map[core.ID]bool
	pins      map[core.ID]bool
	leases    map[core.ID]bool
	runtimes  map[core.ID][]core.Runtime
	cgroups   []string
	mounts    map[string]bool
	mountable map[volumes.Name]bool // the volumes that have options
	bundles   []core.ID
	dirs      []core.ID
	procs     map[core.Ref]core.Supervised
	quiet     map[core.Ref]core.Process
	// storedFirst and storedLast are the containers with memory in files, before and after the records were read.
	storedFirst, storedLast map[core.ID]bool

	sandboxes  map[core.ID]core.Sandbox
	containers map[core.ID]core.Container

	found []Finding
	// agentLived is set if this agent has run since before the processes were lost.
	agentLived bool
}

func set(ids []core.ID) map[core.ID]bool {
	m := map[core.ID]bool{}
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// Take reads the node and then the records.
func (n *Node) Take(ctx context.Context) (*Survey, error) {
	s := &Survey{n: n, runtimes: map[core.ID][]core.Runtime{}, mounts: map[string]bool{}, mountable: map[volumes.Name]bool{}, procs: map[core.Ref]core.Supervised{}}
	var errs []error
	ids := func(what string, list func(context.Context) ([]core.ID, error)) map[core.ID]bool {
		got, err := list(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", what, err))
		}
		return set(got)
	}
	var walk sync.WaitGroup // it takes longest, because there are many directories
	var walkErr error
	walk.Go(func() { s.cgroups, walkErr = n.Cgroups.List(ctx) })
	s.checkouts = ids("checkouts", n.Images.Checkouts)
	s.pins = ids("pins", n.Pinner.Pinned)
	s.leases = ids("networks", n.Network.Sandboxes)
	for _, rt := range n.Runtimes {
		for id := range ids("containers of "+rt.Name(), rt.List) {
			s.runtimes[id] = append(s.runtimes[id], rt)
		}
	}
	mounts, err := n.Roots.Mounted(ctx, n.State)
	if err != nil {
		errs = append(errs, fmt.Errorf("list mounts: %w", err))
	}
	for _, m := range mounts {
		s.mounts[m] = true
	}
	vols, err := n.Volumes.Volumes.List(ctx, "")
	if err != nil {
		errs = append(errs, fmt.Errorf("list volumes: %w", err))
	}
	for _, v := range vols {
		if v.Damaged != "" {
			s.add(Finding{Violation: Violation{"damaged", "volume " + string(v.Owner) + "/" + v.Name, v.Damaged}})
		}
		if len(v.Options) > 0 {
			s.mountable[volumes.Name{Owner: v.Owner, Name: v.Name}] = true
		}
	}
	if s.bundles, err = dirIDs(n.Bundles); err != nil {
		errs = append(errs, err)
	}
	if s.dirs, err = dirIDs(n.Sandboxes); err != nil {
		errs = append(errs, err)
	}
	procs, err := n.Supervisor.Processes(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("list processes: %w", err))
	}
	for _, p := range procs {
		s.procs[p.Ref] = p
	}
	if walk.Wait(); walkErr != nil {
		errs = append(errs, fmt.Errorf("list cgroups: %w", walkErr))
	}
	s.quiet = n.Repairs.Quiet()
	if s.storedFirst, err = n.stored(ctx); err != nil {
		errs = append(errs, err)
	}
	s.sandboxes, s.containers, err = all(n.Records)
	errs = append(errs, err)
	s.storedLast, err = n.stored(ctx)
	return s, errors.Join(append(errs, err)...)
}

func all(r scope.Records) (map[core.ID]core.Sandbox, map[core.ID]core.Container, error) {
	sandboxes, containers := map[core.ID]core.Sandbox{}, map[core.ID]core.Container{}
	err := r.Store.View(func(tx core.Tx) error {
		for sb, err := range tx.Sandboxes().All("") {
			if err != nil {
				return err
			}
			sandboxes[sb.ID] = sb
		}
		for c, err := range tx.Containers().All("") {
			if err != nil {
				return err
			}
			containers[c.ID] = c
		}
		return nil
	})
	return sandboxes, containers, err
}

func (s *Survey) add(f Finding) { s.found = append(s.found, f) }

// Compare returns every disagreement, in the order for their Repair: records first, then things
// without a record.
func (s *Survey) Compare() []Finding {
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id]
		s.container(&c)
	}
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		sb := s.sandboxes[id]
		s.sandbox(&sb)
	}
	s.quietLost()
	s.orphanProcesses()
	s.orphanFiles()
	s.orphanHoldings()
	s.volumeMounts()
	s.sleeps()
	return s.found
}

func (s *Survey) container(c *core.Container) {
	n := s.n
	if c.State == core.ContainerCreating {
		repair := func(ctx context.Context) error {
			return errors.Join(n.Repairs.Kill(ctx, c), n.Repairs.RemoveContainer(ctx, c))
		}
		if p, ok := s.procs[core.Ref{Container: c.ID}]; ok && c.Config.Run { // its program may already have run
			repair = func(ctx context.Context) error { return n.Repairs.Complete(ctx, c, p.Pid) }
		}
		s.add(Finding{
			Violation: Violation{"unfinished", "container " + string(c.ID), "its create was never completed"},
			Sandbox:   c.Sandbox, Repair: repair,
		})
		return
	}
	if c.Removing {
		s.add(Finding{
			Violation: Violation{"unfinished", "container " + string(c.ID), "its removal was never completed"},
			Sandbox:   c.Sandbox,
			Repair:    func(ctx context.Context) error { return n.Repairs.RemoveContainer(ctx, c) },
		})
		return
	}
	if _, ok := s.sandboxes[c.Sandbox]; !ok {
		s.add(Finding{Violation: Violation{"missing", "container " + string(c.ID), "its sandbox has no record"}})
	}
	if c.State != core.ContainerExited {
		s.alive(c, &c.Main, "its main process is not known to the keeper")
	}
	for i := range c.Execs {
		if c.Execs[i].Autopsy == nil {
			s.alive(c, &c.Execs[i], fmt.Sprintf("its process %s is not known to the keeper", c.Execs[i].ID))
		}
	}
	missing := func(what string) {
		s.add(Finding{Violation: Violation{"missing", "container " + string(c.ID), what}, Sandbox: c.Sandbox})
	}
	if c.Image != "" && !s.checkouts[c.ID] {
		missing("its checked-out root is gone")
	}
	for _, id := range volumes.Checkouts(c) {
		if !s.checkouts[id] {
			missing("its image volume " + string(id) + " is gone")
		}
	}
	if !s.mounts[filepath.Join(c.Bundle, "rootfs")] {
		missing("its root is not mounted")
	}
	if s.ownTree(c.Cgroup.Path) && !s.hasCgroup(c.Cgroup.Path) {
		f := Finding{Violation: Violation{"missing", "container " + string(c.ID), "its cgroup is gone"}, Sandbox: c.Sandbox}
		if c.State == core.ContainerExited { // a renewal that a crash has interrupted removes it first
			f.Repair = func(ctx context.Context) error { return n.Cgroups.Create(ctx, c.Cgroup, nil) }
		}
		s.add(f)
	}
}

// ownTree reports whether Cgroups.List returns path if it exists.
func (s *Survey) ownTree(path string) bool {
	place, err := s.n.Cgroups.Place(core.Cgroup{}, core.CgroupRef{}, "x")
	return err == nil && path != "" && strings.HasPrefix(path, filepath.Dir(place.Path)+"/")
}

func (s *Survey) hasCgroup(path string) bool {
	_, ok := slices.BinarySearch(s.cgroups, path)
	return ok
}

func (s *Survey) sandbox(sb *core.Sandbox) {
	n := s.n
	object := "sandbox " + string(sb.ID)
	switch sb.State {
	case core.SandboxCreating:
		s.add(Finding{
			Violation: Violation{"unfinished", object, "its create was never completed"}, Sandbox: sb.ID,
			Repair: func(ctx context.Context) error {
				return errors.Join(n.Repairs.ReleaseSandbox(ctx, sb), n.Repairs.RemoveSandbox(ctx, sb))
			},
		})
	case core.SandboxStopped:
		if !owned.Released(sb) {
			s.add(Finding{
				Violation: Violation{"unfinished", object, "it has stopped and still holds resources"}, Sandbox: sb.ID,
				Repair: func(ctx context.Context) error { return n.Repairs.ReleaseSandbox(ctx, sb) },
			})
		}
	case core.SandboxReady:
		s.ready(sb, object)
	}
}

func (s *Survey) ready(sb *core.Sandbox, object string) {
	n := s.n
	gone := ""
	if len(owned.Pinned(&sb.Config.Namespaces)) > 0 && !s.pins[sb.ID] {
		gone = "its namespaces are gone"
	} else if p := s.procs[core.Ref{Container: sb.ID}]; sb.Init != 0 && !p.Running {
		gone = "its init is gone, and its pid namespace with it"
	}
	if gone != "" {
		s.add(Finding{
			Violation: Violation{"missing", object, gone}, Sandbox: sb.ID, Ref: core.Ref{Container: sb.ID},
			Repair: func(ctx context.Context) error { return n.Repairs.EndSandbox(ctx, sb, gone) },
		})
		return
	}
	// A network with loopback only has nothing to lose.
	if sb.Config.Namespaces.Net.Mode == core.Shared && sb.Network.Mode != core.NetworkNone && !s.leases[sb.ID] {
		s.add(Finding{Violation: Violation{"missing", object, "its network is gone"}, Sandbox: sb.ID})
	}
	if s.ownTree(sb.Cgroup.Path) && !s.hasCgroup(sb.Cgroup.Path) {
		s.add(Finding{Violation: Violation{"missing", object, "its cgroup is gone"}, Sandbox: sb.ID})
	}
}

func (s *Survey) orphan(object, detail string, ref core.Ref, repair func(context.Context) error) {
	s.add(Finding{Violation: Violation{"orphan", object, detail}, Orphan: true, Ref: ref, Repair: repair})
}

// known reports whether id is a container, or a sandbox with an init.
func (s *Survey) known(id core.ID) bool {
	if _, ok := s.containers[id]; ok {
		return true
	}
	sb, ok := s.sandboxes[id]
	return ok && sb.Config.Namespaces.PID.Mode == core.Shared
}

func (s *Survey) orphanFiles() {
	n := s.n
	for _, id := range s.bundles {
		if !s.known(id) {
			s.orphan("bundle "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				return n.Repairs.RemoveBundle(ctx, id)
			})
		}
	}
	for _, id := range s.dirs {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("sandbox directory "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				return n.Repairs.RemoveSandboxDir(ctx, id)
			})
		}
	}
}

func (s *Survey) orphanHoldings() {
	n := s.n
	for id := range s.checkouts {
		if _, ok := s.containers[volumes.CheckoutContainer(id)]; !ok {
			s.orphan("checkout "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error { return n.Images.Discard(ctx, id) })
		}
	}
	for id := range s.pins {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("pinned namespaces "+string(id), "no record names them", core.Ref{}, func(ctx context.Context) error { return n.Pinner.Unpin(ctx, id) })
		}
	}
	for id := range s.leases {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("network of "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				return n.Network.Teardown(ctx, core.NetworkRequest{Sandbox: id})
			})
		}
	}
	var used pathSet
	for _, sb := range s.sandboxes {
		used.add(sb.Cgroup.Path)
	}
	for _, c := range s.containers {
		used.add(c.Cgroup.Path)
	}
	for _, path := range s.cgroups {
		if !used.relates(path) {
			s.orphan("cgroup "+path, "no record names it", core.Ref{}, func(ctx context.Context) error {
				ref := core.CgroupRef{Path: path}
				err := n.Cgroups.Kill(ctx, ref)
				if errdefs.IsNotFound(err) {
					err = nil
				}
				return errors.Join(err, n.Cgroups.Remove(ctx, ref))
			})
		}
	}
}

// volumeMounts compares the mounted volumes with the containers that use them.
func (s *Survey) volumeMounts() {
	mounted, used := map[volumes.Name]bool{}, map[volumes.Name]bool{}
	for _, n := range s.n.Volumes.Mounts(s.mounts) {
		mounted[n] = true
	}
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id]
		for _, v := range c.Config.Volumes {
			n := volumes.Name{Owner: c.Owner, Name: v.Name}
			used[n] = true
			if s.mountable[n] && !mounted[n] && c.State != core.ContainerCreating && !c.Removing {
				s.add(Finding{Violation: Violation{"missing", "container " + string(id), "its volume " + v.Name + " is not mounted any more"}, Sandbox: c.Sandbox})
			}
		}
	}
	unused := map[string]volumes.Name{}
	for n := range mounted {
		if !used[n] {
			unused[string(n.Owner)+"/"+n.Name] = n
		}
	}
	for _, path := range slices.Sorted(maps.Keys(unused)) {
		n := unused[path]
		s.orphan("mount of volume "+path, "no container uses it", core.Ref{}, func(ctx context.Context) error {
			return s.n.Volumes.Release(ctx, n.Owner, []core.VolumeMount{{Name: n.Name}})
		})
	}
}
