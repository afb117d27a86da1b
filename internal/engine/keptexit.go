package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// KeptExits is how many exits of removed execs a container's record keeps. The oldest are dropped
// first.
const KeptExits = 128

// KeptExit returns the end of a removed exec that was started with KeepExit. The exit is kept until
// ForgetExit is called, another process gets the same ID, KeptExits others are added, or the
// container is removed; then the error is NotFound.
func (c *Client) KeptExit(_ context.Context, ref core.Ref) (core.Autopsy, error) {
	ct, err := c.view.Container(ref.Container)
	if err != nil {
		return core.Autopsy{}, err
	}
	i := slices.IndexFunc(ct.Exits, func(x core.KeptExit) bool { return x.Process == ref.Process })
	if i < 0 {
		return core.Autopsy{}, fmt.Errorf("exit of process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	return ct.Exits[i].Autopsy, nil
}

// ForgetExit drops the result of KeptExit. It succeeds if there is none.
func (c *Client) ForgetExit(ctx context.Context, ref core.Ref) error {
	_, err := c.KeptExit(ctx, ref)
	if err == nil {
		err = c.view.ChangeContainer(ref.Container, scope.By{Verb: "forget exit"}, func(ct *core.Container, _ *scope.Change) error {
			forgetExit(ct, ref.Process)
			return nil
		})
	}
	return ignoreNotFound(err)
}

// keepExit keeps the end of p, if p has ended and was started with KeepExit.
func keepExit(ct *core.Container, p *core.Process) {
	if !p.KeepExit || p.Autopsy == nil {
		return
	}
	ct.Exits = append(ct.Exits, core.KeptExit{Process: p.ID, Autopsy: *p.Autopsy})
	if n := len(ct.Exits) - KeptExits; n > 0 {
		ct.Exits = slices.Delete(ct.Exits, 0, n)
	}
}

func forgetExit(ct *core.Container, id core.ProcessID) {
	ct.Exits = slices.DeleteFunc(ct.Exits, func(x core.KeptExit) bool { return x.Process == id })
}
