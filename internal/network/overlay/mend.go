package overlay

import (
	"maps"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// Mend restores the guard of the overlays and the kernel parameters of published ports, and with entries also the
// devices and entries of the overlays.
func (o *Driver) Mend(entries bool) (all []kernel.Change) {
	if changed, err := o.guard.Mend(); changed != "" {
		all = append(all, kernel.Mended(err, "%s", changed))
	}
	for _, v := range o.all() {
		if !entries {
			break
		}
		if what := v.check(); what != nil {
			all = append(all, kernel.Mended(mendOverlay(o, v), "%v", what))
		}
	}
	return append(append(all, mendIngress(o)...), o.ingress.MendSettings()...)
}

// check compares the data path with the kernel. It passes one that could not be adopted.
func (v *openOverlay) check() error {
	v.use.RLock()
	defer v.use.RUnlock()
	if v.path == nil {
		return nil
	}
	return v.path.Check()
}

// mendOverlay opens a data path again, with its peers.
func mendOverlay(o *Driver, v *openOverlay) error {
	o.define.Lock()
	defer o.define.Unlock()
	v.use.Lock()
	defer v.use.Unlock()
	if v.path == nil {
		return nil // closed meanwhile
	}
	peers := maps.Clone(v.path.AllPeers())
	path, err := vxlan.Open(o.dir, o.pathOf(v.def), o.log)
	if err != nil {
		return err
	}
	v.path = path
	return path.SetPeers(peers)
}
