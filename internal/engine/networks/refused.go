package networks

import (
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// The bounds of the refusals in an autopsy. A refusal may be recorded a moment after it.
const (
	maxRefused  = 5
	reportDelay = time.Second
)

// KeepRefused adds the last refusals of a sandbox's egress list to the autopsies of its containers, before the network's end
// removes the log. refused returns the refusals in the log; nil if there are no logs.
func KeepRefused(r scope.Records, sb *core.Sandbox, refused func(core.ID) []core.EgressRefusal) error {
	if refused == nil || len(sb.Config.Network.Egress) == 0 {
		return nil
	}
	list := refused(sb.ID)
	if len(list) == 0 {
		return nil
	}
	var ended []core.ID
	err := r.Store.View(func(tx core.Tx) error {
		for c := range tx.StoredOf(sb.ID) {
			if a := c.Main.Autopsy; a != nil && len(a.EgressRefused) == 0 {
				ended = append(ended, c.ID)
			}
		}
		return nil
	})
	errs := []error{err}
	for _, id := range ended {
		err := r.EditContainer(id, func(c *core.Container, _ *scope.Change) error {
			if c.Main.Autopsy == nil {
				return nil
			}
			a := *c.Main.Autopsy
			a.EgressRefused = lastBefore(list, a.Exit.At.Add(reportDelay))
			c.Main.Autopsy = &a
			return nil
		})
		if !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// AnnounceRefused adds events to the containers of a sandbox, one for each note.
func AnnounceRefused(r scope.Records, sandbox core.ID, notes []string) error {
	return r.Store.Update(func(tx core.Tx) error {
		for _, note := range notes {
			if err := announce(tx, sandbox, note); err != nil {
				return err
			}
		}
		return nil
	})
}

// lastBefore returns the last refusals before a time.
func lastBefore(list []core.EgressRefusal, at time.Time) []core.EgressRefusal {
	list = slices.DeleteFunc(slices.Clone(list), func(r core.EgressRefusal) bool { return r.At.After(at) })
	return list[max(0, len(list)-maxRefused):]
}
