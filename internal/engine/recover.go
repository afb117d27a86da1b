package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
)

// networkRecoverer is a Network that repairs its own state after a start.
type networkRecoverer interface {
	Recover(ctx context.Context, live []core.NetworkRequest) error
}

// Recover makes records and node agree after a start. It must return before any face serves, and
// before Run.
//
// It undoes creates that were not completed, pairs as a whole. A process that the keeper does not
// know has ended, and is recorded as lost. Everything without a record is removed. Exits that
// happened meanwhile are recorded. After a boot of the node, objects that the event log says
// existed get the events of their end.
func (e *Engine) Recover(ctx context.Context) error {
	r := recovery{e: e}
	for _, step := range []func(context.Context) error{r.endLostObjects, r.mount, r.checkpoints, r.repair, r.recoverNetwork, r.dropEphemeral, r.pendingExits, e.All().Rests.Recover} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("recover: %w", err)
		}
	}
	err := e.records.Tell(core.Event{Kind: core.EventAgent, Note: r.String()})
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A node without space serves: its user frees space with its commands.
		e.o.Logger.ErrorContext(ctx, "no space is left for the event of this start; the agent serves without it", "event", r.String(), "error", err)
		return nil
	}
	return err
}

// recovery is one Recover. Its methods are the steps, and count for the event of the start.
type recovery struct {
	e        *Engine
	lost     int // objects that ended with the node
	returned int // objects that have outlived the node's restart
	repaired int // findings of a survey
	exits    int // of processes, while there was no agent
}

// String is the note of the start's event.
func (r *recovery) String() string {
	note := fmt.Sprintf("started: %d repairs, %d exits meanwhile", r.repaired, r.exits)
	if r.returned > 0 {
		note += fmt.Sprintf(", %d durable objects returned after the node's restart", r.returned)
	}
	if r.lost > 0 {
		note += fmt.Sprintf(", %d objects ended by the node's restart", r.lost)
	}
	return note
}

// endLostObjects appends the end of each object that existed before the node went down, and brings
// the durable ones back. It does so in one transaction, so that a crash leaves the list of lost objects complete.
func (r *recovery) endLostObjects(context.Context) error {
	list := r.e.o.Store.LostObjects()
	r.lost = len(list)
	if len(list) == 0 {
		return nil
	}
	var returner core.Returner
	if r.e.o.Return != nil {
		returner = r.e.o.Return(&r.e.volumes)
	}
	err := r.e.o.Store.Update(func(tx core.Tx) error {
		for _, o := range list {
			if returner != nil {
				if ok, err := returner.Return(tx, o, now()); err != nil {
					return err
				} else if ok {
					r.lost--
					r.returned++
					continue
				}
			}
			for _, ev := range lastEvents(o) {
				ev.At, ev.Owner, ev.Key, ev.Sandbox, ev.Container = now(), o.Owner, o.Key, o.Sandbox, o.Container
				if _, err := tx.Append(ev); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record the ends of what ran before the boot: %w", err)
	}
	return nil
}

// checkpoints completes or undoes interrupted checkpoints and restores.
func (r *recovery) checkpoints(ctx context.Context) error {
	if r.e.o.Checkpoints == nil {
		return nil
	}
	return r.e.o.Checkpoints(r.e.All()).Recover(ctx)
}

// mount mounts the roots of objects that have returned.
func (r *recovery) mount(ctx context.Context) error {
	if r.e.o.Return == nil {
		return nil
	}
	return r.e.o.Return(&r.e.volumes).Mount(ctx)
}

func lastEvents(r core.LostObject) (events []core.Event) {
	const why = "the node was restarted"
	if r.Container == "" {
		return []core.Event{{Kind: core.EventSandboxRemoved, Note: why}}
	}
	a := autopsy.Boot(now())
	for _, p := range r.Execs {
		events = append(events, core.Event{Kind: core.EventProcessExited, Process: p, Autopsy: &a})
	}
	if r.Running {
		events = append(events, core.Event{Kind: core.EventContainerExited, Autopsy: &a})
	}
	return append(events, core.Event{Kind: core.EventContainerRemoved, Note: why})
}

// repair repairs the findings of a survey, several times, because ending a sandbox may leave things
// without a record.
func (r *recovery) repair(ctx context.Context) error {
	for range 3 {
		s, err := r.e.node().Take(ctx)
		if err != nil {
			return err
		}
		done := 0
		for _, f := range append(s.Compare(), s.Halves()...) {
			log := r.e.o.Logger.With("kind", f.Kind, "object", f.Object)
			if f.Repair == nil {
				log.WarnContext(ctx, "records and node disagree, and this cannot be repaired; longshore check lists it", "detail", f.Detail)
				continue
			}
			done++
			log.InfoContext(ctx, "repairing", "detail", f.Detail)
			if err := f.Repair(ctx); err != nil && !errdefs.IsNotFound(err) {
				if stages.Crashed(err) || ctx.Err() != nil {
					return err
				}
				// One object that cannot be repaired must not keep the agent from serving the
				// others. check continues to report it.
				log.ErrorContext(ctx, "could not repair an object; longshore check lists it", "error", err)
			}
		}
		r.repaired += done
		if done == 0 {
			break
		}
	}
	return nil
}

// endSandbox stops a sandbox that has lost something it needs, with everything in it.
func (e *Engine) endSandbox(ctx context.Context, sb *core.Sandbox, why string) error {
	unlock, err := e.sandboxes.Lock(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := e.records.ContainersOf(sb.ID)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.State == core.ContainerExited {
			continue
		}
		if err := e.kill(ctx, &c); err != nil {
			return err
		}
	}
	cur, err := e.records.EditSandbox(sb.ID, func(sb *core.Sandbox, n *scope.Change) error { return stopped(sb, n, why) })
	if err != nil {
		return err
	}
	return teardown{e: e}.release(ctx, &cur)
}

func (r *recovery) recoverNetwork(ctx context.Context) error {
	network, ok := r.e.o.Network.(networkRecoverer)
	if !ok {
		return nil
	}
	sandboxes, err := r.e.All().Stored.Sandboxes()
	if err != nil {
		return err
	}
	var live []core.NetworkRequest
	for _, sb := range sandboxes {
		if sb.State == core.SandboxReady && sb.Config.Namespaces.Net.Mode == core.Shared {
			live = append(live, sb.NetworkRequest())
		}
	}
	if err := network.Recover(ctx, live); err != nil {
		return err
	}
	for _, req := range live { // the last agent may have died before their files said so
		if req.Last.Resolver.IsValid() {
			if err := r.e.All().Attachments.Refresh(ctx, req.Sandbox); err != nil {
				r.e.o.Logger.WarnContext(ctx, "could not bring a sandbox's files in /etc up to date", "sandbox", string(req.Sandbox), "error", err)
			}
		}
	}
	return nil
}

// dropEphemeral ends ephemeral processes; their callers went away with the last agent.
func (r *recovery) dropEphemeral(ctx context.Context) error {
	containers, err := r.e.All().Stored.Containers()
	if err != nil {
		return err
	}
	for _, c := range containers {
		for _, p := range c.Execs {
			if !p.Ephemeral {
				continue
			}
			ref := core.Ref{Container: c.ID, Process: p.ID}
			r.e.quiet.Adopt(ref)
			if p.Autopsy != nil {
				err = r.e.quiet.DropAbandoned(ctx, ref)
			} else {
				err = r.e.killExec(ctx, c, &p)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// pendingTime bounds how long a start waits for exits that have already happened.
const pendingTime = 5 * time.Second

// pendingExits records the exits that the keeper has ready. It also waits for the exits of
// processes without a record, which were killed. So the first answer of every face is true.
func (r *recovery) pendingExits(ctx context.Context) error {
	st, err := r.e.o.Supervisor.Status(ctx)
	if err != nil {
		return err
	}
	known, err := r.e.node().Processes(ctx)
	if err != nil {
		return err
	}
	dying := known.Dying()
	if st.Pending == 0 && len(dying) == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, pendingTime)
	defer cancel()
	exits := reaper{e: r.e}
	for x, err := range r.e.o.Supervisor.Exits(wait) {
		if err != nil {
			return err
		}
		if err := exits.exited(ctx, x); err != nil {
			return err
		}
		if dying[x.Ref] {
			delete(dying, x.Ref)
		} else {
			r.exits++
		}
		if r.exits >= st.Pending && len(dying) == 0 {
			break
		}
	}
	return ctx.Err()
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
