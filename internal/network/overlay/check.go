package overlay

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network/ingress"
	"github.com/longshore/longshore/internal/network/kernel"
)

// Intact returns FailedPrecondition with the missing parts of overlays and published ports, which
// another program may have removed. It does not check sandboxes' own namespaces, which they may
// change.
func (o *Driver) Intact() error {
	errs := []error{o.keys.Check(), o.guard.Check()}
	for _, v := range o.all() {
		v.use.RLock()
		if v.path == nil {
			errs = append(errs, fmt.Errorf("network %s: it could not be adopted: %w", v.def.Name, errdefs.ErrFailedPrecondition))
		} else {
			errs = append(errs, v.path.Check())
		}
		v.use.RUnlock()
	}
	if err := checkIngress(o); err != nil {
		errs = append(errs, fmt.Errorf("check published ports: %w", err))
	}
	return errors.Join(errs...)
}

// checkIngress checks both ends of the ingress.
func checkIngress(o *Driver) error {
	on, err := o.ingress.Check()
	for _, v := range o.all() {
		v.use.RLock()
		if err == nil && on == v.def.Name && v.path != nil {
			err = v.path.CheckAttached(ingress.Key, o.ingress.Path())
		}
		v.use.RUnlock()
	}
	return err
}

// mendIngress restores links, addresses, routes and rules of the ingress.
func mendIngress(o *Driver) []kernel.Change {
	lacks := checkIngress(o)
	if lacks == nil {
		return nil
	}
	is := o.ingress.Opened()
	if is == nil {
		return nil // closed meanwhile
	}
	err := o.OpenIngress(context.Background(), *is)
	if err == nil {
		err = errors.Join(o.ingress.Rebuild(), checkIngress(o))
	}
	return []kernel.Change{kernel.Mended(err, "published ports: %v", lacks)}
}
