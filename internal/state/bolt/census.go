package bolt

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
)

// census has the objects that exist according to the events alone, by container or sandbox ID.
type census map[core.ID]core.LostObject

func (c census) add(r core.LostObject) {
	id := r.Container
	if id == "" {
		id = r.Sandbox
	}
	c[id] = r
}

func (c census) addSandbox(sb *core.Sandbox) {
	c.add(core.LostObject{Owner: sb.Owner, Key: sb.Key, Sandbox: sb.ID})
}

func (c census) addContainer(ct *core.Container) {
	r := core.LostObject{Owner: ct.Owner, Key: ct.Key, Sandbox: ct.Sandbox, Container: ct.ID}
	r.Running = ct.State.Live()
	for i := range ct.Execs {
		if p := &ct.Execs[i]; !p.Started.IsZero() && p.Autopsy == nil {
			r.Execs = append(r.Execs, p.ID)
		}
	}
	c.add(r)
}

func (c census) apply(ev core.Event) {
	id := ev.Container
	if id == "" {
		id = ev.Sandbox
	}
	r, known := c[id]
	switch ev.Kind {
	case core.EventSandboxCreating, core.EventContainerCreating:
		c.add(core.LostObject{Owner: ev.Owner, Key: ev.Key, Sandbox: ev.Sandbox, Container: ev.Container})
		return
	case core.EventSandboxRemoved, core.EventContainerRemoved:
		delete(c, id)
		return
	case core.EventContainerStarted:
		r.Running = true
	case core.EventContainerExited:
		r.Running = false
	case core.EventProcessStarted:
		r.Execs = append(slices.Clone(r.Execs), ev.Process)
	case core.EventProcessExited:
		r.Execs = slices.DeleteFunc(slices.Clone(r.Execs), func(p core.ProcessID) bool { return p == ev.Process })
	default:
		return
	}
	if known {
		c[id] = r
	}
}

// line applies a line of the event log.
func (c census) line(kind string, _ uint64, raw []byte) error {
	if kind == lineCensus {
		var list []core.LostObject
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		clear(c)
		for _, r := range list {
			c.add(r)
		}
		return nil
	}
	var ev core.Event
	if err := json.Unmarshal(raw, &ev); err != nil {
		return err
	}
	c.apply(ev)
	return nil
}

// after returns the objects of c that exist after events, and whether these are fewer. It adds
// nothing.
func (c census) after(events []state.Event) (left census, fewer bool) {
	for _, e := range events {
		id := e.Container
		if id == "" {
			id = e.Sandbox
		}
		if _, known := c[id]; !known {
			continue
		}
		if !fewer {
			c, fewer = maps.Clone(c), true
		}
		if e.Kind == core.EventSandboxReturned || e.Kind == core.EventContainerReturned {
			delete(c, id)
			continue
		}
		c.apply(e.Event)
	}
	return c, fewer
}

// list returns the objects, containers first, each kind by owner and key.
func (c census) list() []core.LostObject {
	list := slices.Collect(maps.Values(c))
	slices.SortFunc(list, func(a, b core.LostObject) int {
		return cmp.Or(-cmp.Compare(min(len(a.Container), 1), min(len(b.Container), 1)),
			cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Container, b.Container))
	})
	return list
}
