package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/volumes"
)

// survey has the state of the node and the records, read in this order, so that an object removed
// meanwhile is not taken for one without a record.
type survey struct {
	e         *Engine
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

	sandboxes  map[core.ID]core.Sandbox
	containers map[core.ID]core.Container

	found []finding
	// agentLived is set if this agent has run since before the processes were lost.
	agentLived bool
}

// finding is one disagreement. repair may be nil.
type finding struct {
	Violation
	orphan  bool    // something without a record
	sandbox core.ID // its sandbox, which has the lock that protects it, if any
	ref     core.Ref
	repair  func(ctx context.Context) error
}

func set(ids []core.ID) map[core.ID]bool {
	m := map[core.ID]bool{}
	for _, id := range ids {
		m[id] = true
	}
	return m
}

func (e *Engine) survey(ctx context.Context) (*survey, error) {
	s := &survey{e: e, runtimes: map[core.ID][]core.Runtime{}, mounts: map[string]bool{}, mountable: map[volumes.Name]bool{}, procs: map[core.Ref]core.Supervised{}}
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
	walk.Go(func() { s.cgroups, walkErr = e.o.Cgroups.List(ctx) })
	s.checkouts = ids("checkouts", e.o.Images.Checkouts)
	s.pins = ids("pins", e.o.Pinner.Pinned)
	s.leases = ids("networks", e.o.Network.Sandboxes)
	for _, rt := range e.o.Runtimes {
		for id := range ids("containers of "+rt.Name(), rt.List) {
			s.runtimes[id] = append(s.runtimes[id], rt)
		}
	}
	mounts, err := e.o.Roots.Mounted(ctx, e.o.State)
	if err != nil {
		errs = append(errs, fmt.Errorf("list mounts: %w", err))
	}
	for _, m := range mounts {
		s.mounts[m] = true
	}
	vols, err := e.o.Volumes.List(ctx, "")
	if err != nil {
		errs = append(errs, fmt.Errorf("list volumes: %w", err))
	}
	for _, v := range vols {
		if v.Damaged != "" {
			s.add(finding{Violation: Violation{"damaged", "volume " + string(v.Owner) + "/" + v.Name, v.Damaged}})
		}
		if len(v.Options) > 0 {
			s.mountable[volumes.Name{Owner: v.Owner, Name: v.Name}] = true
		}
	}
	if s.bundles, err = dirIDs(filepath.Dir(e.bundle("x"))); err != nil {
		errs = append(errs, err)
	}
	if s.dirs, err = dirIDs(filepath.Dir(e.sandboxDir("x"))); err != nil {
		errs = append(errs, err)
	}
	procs, err := e.o.Supervisor.Processes(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("list processes: %w", err))
	}
	for _, p := range procs {
		s.procs[p.Ref] = p
	}
	if walk.Wait(); walkErr != nil {
		errs = append(errs, fmt.Errorf("list cgroups: %w", walkErr))
	}
	s.quiet = e.quiet.all()
	s.sandboxes, s.containers, err = e.records.all()
	return s, errors.Join(append(errs, err)...)
}

func (r records) all() (map[core.ID]core.Sandbox, map[core.ID]core.Container, error) {
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

func (s *survey) add(f finding) { s.found = append(s.found, f) }

// compare returns every disagreement, in the order for their repair: records first, then things
// without a record.
func (s *survey) compare() []finding {
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
	return s.found
}

func (s *survey) container(c *core.Container) {
	e := s.e
	if c.State == core.ContainerCreating {
		repair := func(ctx context.Context) error {
			return errors.Join(e.kill(ctx, c), teardown{e: e}.container(ctx, c))
		}
		if p, ok := s.procs[core.Ref{Container: c.ID}]; ok && c.Config.Run { // its program may already have run
			repair = func(ctx context.Context) error {
				if rt, err := e.runtime(c.Runtime); err == nil {
					_ = rt.Start(ctx, c.ID) // a runtime that creates and starts in two steps may have done only the first
				}
				return e.records.EditContainer(c.ID, func(c *core.Container, n *scope.Change) error { c.Main.Pid = p.Pid; return created(c, n) })
			}
		}
		s.add(finding{
			Violation: Violation{"unfinished", "container " + string(c.ID), "its create was never completed"},
			sandbox:   c.Sandbox, repair: repair,
		})
		return
	}
	if c.Removing {
		s.add(finding{
			Violation: Violation{"unfinished", "container " + string(c.ID), "its removal was never completed"},
			sandbox:   c.Sandbox,
			repair:    func(ctx context.Context) error { return teardown{e: e}.container(ctx, c) },
		})
		return
	}
	if _, ok := s.sandboxes[c.Sandbox]; !ok {
		s.add(finding{Violation: Violation{"missing", "container " + string(c.ID), "its sandbox has no record"}})
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
		s.add(finding{Violation: Violation{"missing", "container " + string(c.ID), what}, sandbox: c.Sandbox})
	}
	if c.Image != "" && !s.checkouts[c.ID] {
		missing("its checked-out root is gone")
	}
	for _, id := range imageCheckouts(c) {
		if !s.checkouts[id] {
			missing("its image volume " + string(id) + " is gone")
		}
	}
	if !s.mounts[filepath.Join(c.Bundle, "rootfs")] {
		missing("its root is not mounted")
	}
	if s.ownTree(c.Cgroup.Path) && !s.hasCgroup(c.Cgroup.Path) {
		f := finding{Violation: Violation{"missing", "container " + string(c.ID), "its cgroup is gone"}, sandbox: c.Sandbox}
		if c.State == core.ContainerExited { // a renewal that a crash has interrupted removes it first
			f.repair = func(ctx context.Context) error { return e.o.Cgroups.Create(ctx, c.Cgroup, nil) }
		}
		s.add(f)
	}
}

// ownTree reports whether Cgroups.List returns path if it exists.
func (s *survey) ownTree(path string) bool {
	place, err := s.e.o.Cgroups.Place(core.Cgroup{}, core.CgroupRef{}, "x")
	return err == nil && path != "" && strings.HasPrefix(path, filepath.Dir(place.Path)+"/")
}

func (s *survey) hasCgroup(path string) bool {
	_, ok := slices.BinarySearch(s.cgroups, path)
	return ok
}

// alive finds a process that the keeper does not know: how it ended is lost.
func (s *survey) alive(c *core.Container, p *core.Process, what string) {
	ref := core.Ref{Container: c.ID, Process: p.ID}
	if _, ok := s.procs[ref]; ok || c.Refused != nil && p.ID == core.Main {
		return
	}
	e := s.e
	s.add(finding{
		Violation: Violation{"lost", "container " + string(c.ID), what},
		sandbox:   c.Sandbox, ref: ref,
		repair: func(ctx context.Context) error { return e.lose(ctx, c, p.ID, s.agentLived) },
	})
}

func (s *survey) sandbox(sb *core.Sandbox) {
	e := s.e
	object := "sandbox " + string(sb.ID)
	switch sb.State {
	case core.SandboxCreating:
		s.add(finding{
			Violation: Violation{"unfinished", object, "its create was never completed"}, sandbox: sb.ID,
			repair: func(ctx context.Context) error {
				return errors.Join(teardown{e: e}.release(ctx, sb), teardown{e: e}.sandbox(ctx, sb))
			},
		})
	case core.SandboxStopped:
		if !released(sb) {
			s.add(finding{
				Violation: Violation{"unfinished", object, "it has stopped and still holds resources"}, sandbox: sb.ID,
				repair: func(ctx context.Context) error { return teardown{e: e}.release(ctx, sb) },
			})
		}
	case core.SandboxReady:
		s.ready(sb, object)
	}
}

func (s *survey) ready(sb *core.Sandbox, object string) {
	e := s.e
	gone := ""
	if len(owned.Shared(&sb.Config.Namespaces)) > 0 && !s.pins[sb.ID] {
		gone = "its namespaces are gone"
	} else if p := s.procs[core.Ref{Container: sb.ID}]; sb.Init != 0 && !p.Running {
		gone = "its init is gone, and its pid namespace with it"
	}
	if gone != "" {
		s.add(finding{
			Violation: Violation{"missing", object, gone}, sandbox: sb.ID, ref: core.Ref{Container: sb.ID},
			repair: func(ctx context.Context) error { return e.endSandbox(ctx, sb, gone) },
		})
		return
	}
	// A network with loopback only has nothing to lose.
	if sb.Config.Namespaces.Net.Mode == core.Shared && sb.Network.Mode != core.NetworkNone && !s.leases[sb.ID] {
		s.add(finding{Violation: Violation{"missing", object, "its network is gone"}, sandbox: sb.ID})
	}
	if s.ownTree(sb.Cgroup.Path) && !s.hasCgroup(sb.Cgroup.Path) {
		s.add(finding{Violation: Violation{"missing", object, "its cgroup is gone"}, sandbox: sb.ID})
	}
}

func (s *survey) orphan(object, detail string, ref core.Ref, repair func(context.Context) error) {
	s.add(finding{Violation: Violation{"orphan", object, detail}, orphan: true, ref: ref, repair: repair})
}

func (s *survey) orphanProcesses() {
	for ref, p := range s.procs {
		if c, ok := s.containers[ref.Container]; ok && c.Process(ref.Process) != nil {
			continue
		}
		if _, ok := s.sandboxes[ref.Container]; ok && ref.Process == core.Main {
			continue
		}
		if _, ok := s.quiet[ref]; ok {
			continue
		}
		s.orphan(fmt.Sprintf("process %s/%s", ref.Container, ref.Process), fmt.Sprintf("the keeper holds it (pid %d) and no record names it", p.Pid), ref,
			func(ctx context.Context) error { return s.endStray(ctx, ref, p) })
	}
	for id, rts := range s.runtimes {
		if s.known(id) {
			continue
		}
		for _, rt := range rts {
			s.orphan("runtime entry "+string(id), rt.Name()+" keeps it and no record names it", core.Ref{},
				func(ctx context.Context) error { return rt.Delete(ctx, id, true) })
		}
	}
}

// known reports whether id is a container, or a sandbox with an init.
func (s *survey) known(id core.ID) bool {
	if _, ok := s.containers[id]; ok {
		return true
	}
	sb, ok := s.sandboxes[id]
	return ok && sb.Config.Namespaces.PID.Mode == core.Shared
}

func (s *survey) orphanFiles() {
	e := s.e
	for _, id := range s.bundles {
		if !s.known(id) {
			s.orphan("bundle "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				bundle := e.bundle(id)
				return errors.Join(e.o.Roots.Unmount(ctx, filepath.Join(bundle, "rootfs")), e.imageVolumes().clear(ctx, bundle), removeBundle(bundle))
			})
		}
	}
	for _, id := range s.dirs {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("sandbox directory "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				return teardown{e: e}.sandboxDir(ctx, e.sandboxDir(id))
			})
		}
	}
}

func (s *survey) orphanHoldings() {
	e := s.e
	for id := range s.checkouts {
		if _, ok := s.containers[checkoutContainer(id)]; !ok {
			s.orphan("checkout "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error { return e.o.Images.Discard(ctx, id) })
		}
	}
	for id := range s.pins {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("pinned namespaces "+string(id), "no record names them", core.Ref{}, func(ctx context.Context) error { return e.o.Pinner.Unpin(ctx, id) })
		}
	}
	for id := range s.leases {
		if _, ok := s.sandboxes[id]; !ok {
			s.orphan("network of "+string(id), "no record names it", core.Ref{}, func(ctx context.Context) error {
				return e.o.Network.Teardown(ctx, core.NetworkRequest{Sandbox: id})
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
				return errors.Join(ignoreNotFound(e.o.Cgroups.Kill(ctx, ref)), e.o.Cgroups.Remove(ctx, ref))
			})
		}
	}
}
