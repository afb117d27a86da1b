package survey

import (
	"context"
	"errors"
	"fmt"

	"github.com/longshore/longshore/internal/core"
)

// Processes reads the records and the keeper's processes alone. It reads the records first, so that
// a process launched meanwhile is not taken for lost.
func (n *Node) Processes(ctx context.Context) (*Survey, error) {
	s := &Survey{n: n, procs: map[core.Ref]core.Supervised{}, quiet: n.Repairs.Quiet()}
	var err error
	if s.sandboxes, s.containers, err = all(n.Records); err != nil {
		return nil, err
	}
	procs, err := n.Supervisor.Processes(ctx)
	for _, p := range procs {
		s.procs[p.Ref] = p
	}
	return s, err
}

// Dying returns the processes without a record that still run.
func (s *Survey) Dying() map[core.Ref]bool {
	s.orphanProcesses()
	dying := map[core.Ref]bool{}
	for _, f := range s.found {
		if s.procs[f.Ref].Running {
			dying[f.Ref] = true
		}
	}
	return dying
}

// Reconcile makes the records agree with a new keeper's processes. A missing process is recorded as
// lost, and an exec that nobody waits for is killed.
func (s *Survey) Reconcile(ctx context.Context) error {
	s.agentLived = true
	for _, c := range s.containers {
		if c.State != core.ContainerCreating && c.State != core.ContainerExited {
			s.alive(&c, &c.Main, "its main process went with a keeper")
		}
		for i := range c.Execs {
			if c.Execs[i].Autopsy == nil {
				s.alive(&c, &c.Execs[i], "a process of it went with a keeper")
			}
		}
	}
	for _, sb := range s.sandboxes {
		if _, ok := s.procs[core.Ref{Container: sb.ID}]; sb.State == core.SandboxReady && sb.Init != 0 && !ok {
			s.add(Finding{Repair: func(ctx context.Context) error {
				return s.n.Repairs.EndSandbox(ctx, &sb, "its init went with a keeper, and its pid namespace with it")
			}})
		}
	}
	s.quietLost()
	s.strayExecs()
	var errs []error
	for _, f := range s.found {
		errs = append(errs, f.Repair(ctx))
	}
	return errors.Join(errs...)
}

// alive finds a process that the keeper does not know: how it ended is lost.
func (s *Survey) alive(c *core.Container, p *core.Process, what string) {
	ref := core.Ref{Container: c.ID, Process: p.ID}
	if _, ok := s.procs[ref]; ok || c.Refused != nil && p.ID == core.Main {
		return
	}
	n := s.n
	s.add(Finding{
		Violation: Violation{"lost", "container " + string(c.ID), what},
		Sandbox:   c.Sandbox, Ref: ref,
		Repair: func(ctx context.Context) error { return n.Repairs.Lose(ctx, c, p.ID, s.agentLived) },
	})
}

// quietLost finds a process without a record that the keeper does not know: how it ended is lost.
func (s *Survey) quietLost() {
	for ref, p := range s.quiet {
		if _, ok := s.procs[ref]; ok || p.Autopsy != nil {
			continue
		}
		s.add(Finding{
			Violation: Violation{"lost", "container " + string(ref.Container), fmt.Sprintf("its quiet process %s is not known to the keeper", ref.Process)}, Ref: ref,
			Repair: func(ctx context.Context) error { return s.n.Repairs.LoseQuiet(ctx, ref) },
		})
	}
}

// strayExecs finds processes that nobody waits for after the keeper was replaced: quiet ones
// without a caller, and execs without a record because their launch was cut off.
func (s *Survey) strayExecs() {
	for ref, p := range s.procs {
		if ref.Process != core.Main && s.n.Repairs.Stray(ref) {
			s.add(Finding{Ref: ref, Repair: func(ctx context.Context) error { return s.endStray(ctx, ref, p) }})
		}
	}
}

func (s *Survey) endStray(ctx context.Context, ref core.Ref, p core.Supervised) error {
	if c, ok := s.containers[ref.Container]; ok {
		return s.n.Repairs.EndStray(ctx, ref, p, &c)
	}
	return s.n.Repairs.EndStray(ctx, ref, p, nil)
}

func (s *Survey) orphanProcesses() {
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

// Halves finds the pairs without their container, and the ended containers that have a process
// again. Only recovery calls it: while an agent runs, these may be in the middle of their removal
// or of their renewal.
func (s *Survey) Halves() (found []Finding) {
	whole := map[core.ID]bool{}
	for _, c := range s.containers {
		whole[c.Sandbox] = true
		if s.procs[core.Ref{Container: c.ID}].Running && c.State == core.ContainerExited {
			found = append(found, s.half(&c))
		}
	}
	for id, sb := range s.sandboxes {
		if !sb.Pair || sb.State == core.SandboxCreating || whole[id] {
			continue
		}
		const why = "it was made for one container, which was never completed or is gone"
		found = append(found, Finding{
			Violation: Violation{"unfinished", "sandbox " + string(id), why},
			Repair: func(ctx context.Context) error {
				if err := s.n.Repairs.EndSandbox(ctx, &sb, why); err != nil {
					return err
				}
				return s.n.Repairs.RemoveSandbox(ctx, &sb)
			},
		})
	}
	return found
}

// half is the finding about an ended container after a crash in its renewal.
func (s *Survey) half(c *core.Container) Finding {
	return Finding{
		Violation: Violation{"unfinished", "container " + string(c.ID), "it has ended and has a process: it was never completely made ready to be started again"},
		Repair:    func(ctx context.Context) error { return s.n.Repairs.Unrenew(ctx, c) },
	}
}
