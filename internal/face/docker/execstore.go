package docker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// storedExec is an exec as it is stored for the next agent.
type storedExec struct {
	Container core.ID    `json:"container"`
	Config    execConfig `json:"config"`
	Keys      []byte     `json:"keys,omitempty"`
	Started   bool       `json:"started,omitempty"`
	Ended     time.Time  `json:"ended"`
	Code      *int       `json:"code,omitempty"`
}

// store stores an exec. Without a store execs end with the agent. Preconditions: nobody else changes the exec.
func (x *execs) store(e *execution) {
	if x.f.o.Execs == nil {
		return
	}
	data, err := json.Marshal(storedExec{e.container, e.cfg, e.keys, e.started, e.ended, e.code})
	if err == nil {
		err = x.f.o.Execs.Put(string(e.id), data)
	}
	if err != nil {
		x.f.log.Warn("could not store an exec; the next agent will not know it", "container", string(e.container), "exec", string(e.id), "error", err)
	}
}

// drop removes an exec from the store.
func (x *execs) drop(id core.ProcessID) {
	if x.f.o.Execs != nil {
		_ = x.f.o.Execs.Delete(string(id)) // the next agent drops it
	}
}

// recover reads the execs of an earlier agent. It drains those that run, and learns the codes of those that have ended.
func (x *execs) recover(ctx context.Context) {
	if x.f.o.Execs == nil {
		return
	}
	stored := map[core.ProcessID]storedExec{}
	for id, data := range x.f.o.Execs.All("") {
		var one storedExec
		if json.Unmarshal(data, &one) == nil {
			stored[core.ProcessID(id)] = one
		}
	}
	for id, one := range stored {
		c, err := x.reads().Container(ctx, one.Container)
		if err != nil {
			x.drop(id) // its container was removed
			continue
		}
		e := &execution{id: id, container: one.Container, cfg: one.Config, keys: one.Keys, started: one.Started, ended: one.Ended, code: one.Code}
		e.running = e.started && e.code == nil
		x.add(e)
		if !e.running {
			continue
		}
		if running(&c, id) {
			go x.resume(ctx, c, e)
			continue
		}
		x.learn(ctx, c, e)
	}
}

// reads returns the engine that sees all containers with execs.
func (x *execs) reads() *engine.Client { return others{x.f}.reads() }

// engine returns the engine of a container's owner.
func (x *execs) engine(c *core.Container) *engine.Client { return others{x.f}.engine(c) }

// learn records the code of an exec that ended without an agent.
func (x *execs) learn(ctx context.Context, c core.Container, e *execution) {
	ref, code := core.Ref{Container: c.ID, Process: e.id}, core.LostCode
	if p := c.Process(e.id); p != nil && p.Autopsy != nil {
		code = p.Autopsy.Exit.Status()
	} else if a, err := x.engine(&c).KeptExit(ctx, ref); err == nil {
		code = a.Exit.Status()
	}
	x.ended(c, e, code)
	run := attach.Exec{Engine: x.engine(&c), Log: x.f.log, Owner: core.OwnerDocker, Call: "docker exec"}
	at := &attach.Session{Engine: x.engine(&c), Ref: ref}
	run.End(ctx, at, false)
	_ = x.engine(&c).ForgetExit(ctx, ref) // the exec has the code
}

// The pause between two tries to read an exec's output, while the keeper has not noticed the end of the earlier agent.
const (
	firstTry   = 50 * time.Millisecond
	longestTry = 2 * time.Second
)

// resume drains an exec of an earlier agent until its end. Its client went away with that agent.
func (x *execs) resume(ctx context.Context, c core.Container, e *execution) {
	ref := core.Ref{Container: c.ID, Process: e.id}
	for pause := firstTry; ; pause = min(2*pause, longestTry) {
		streams, err := x.engine(&c).Streams(ctx, ref, core.StreamOptions{Stdout: true, Stderr: !e.cfg.Tty, Exclusive: true})
		if err == nil {
			at := &attach.Session{Engine: x.engine(&c), Ref: ref, Streams: streams}
			at.Follow(ctx)
			x.drainExec(ctx, c, e, at)
			return
		}
		now, cerr := x.reads().Container(ctx, c.ID)
		if cerr != nil {
			return // it was removed
		}
		if !running(&now, e.id) {
			x.learn(ctx, now, e)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
