package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// Held returns a holder of open files in all pairs. A keeper of a release that could not do that
// keeps none.
func (c *Client) Held() core.Holder { return holder{c} }

// holder implements core.Holder.
type holder struct{ c *Client }

// Hold implements core.Holder. The pair that new launches go to keeps the files.
func (h holder) Hold(ctx context.Context, name string, files []*os.File) error {
	m := &planned{Message: &wire.HeldName{Name: name}}
	defer runtime.KeepAlive(files)
	for _, f := range files {
		raw, err := f.SyscallConn() // Fd would make a socket a blocking one, also in other processes
		if err == nil {
			err = raw.Control(func(fd uintptr) { m.held = append(m.held, int(fd)) })
		}
		if err != nil {
			return fmt.Errorf("hold %s: %w", name, err)
		}
	}
	if len(files) == 0 || len(files) > wire.MaxHeld || name == "" || len(name) > wire.MaxHeldName {
		return fmt.Errorf("hold %q: %d files: %w", name, len(files), errdefs.ErrInvalidArgument)
	}
	p, err := h.c.current(ctx)
	if err != nil {
		return err
	}
	_, err = p.call(ctx, wire.KindHold, m, nil)
	return err
}

// Held implements core.Holder.
func (h holder) Held(ctx context.Context, name string) ([]*os.File, error) {
	var files []*os.File
	err := h.each(ctx, func(p *pair) error {
		fds, err := p.call(ctx, wire.KindHeld, &wire.HeldName{Name: name}, nil)
		if files != nil {
			fds.close()
			return nil
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), name))
		}
		return err
	})
	if files != nil {
		return files, nil
	}
	if err == nil {
		err = errdefs.ErrNotFound
	}
	return nil, fmt.Errorf("held %s: %w", name, err)
}

// Drop implements core.Holder.
func (h holder) Drop(ctx context.Context, name string) error {
	return h.each(ctx, func(p *pair) error {
		_, err := p.call(ctx, wire.KindDropHeld, &wire.HeldName{Name: name}, nil)
		return err
	})
}

// Names implements core.Holder.
func (h holder) Names(ctx context.Context) ([]string, error) {
	var all []string
	err := h.each(ctx, func(p *pair) error {
		var l wire.HeldNames
		_, err := p.call(ctx, wire.KindHeldNames, nil, &l)
		all = append(all, l.List...)
		return err
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// each calls fn for each pair, newest first. That one knows nothing of a name is no error.
func (h holder) each(ctx context.Context, fn func(*pair) error) error {
	if _, err := h.c.current(ctx); err != nil {
		return err
	}
	var errs []error
	for _, p := range h.c.all() {
		if err := fn(p); err != nil && !p.dead() && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
