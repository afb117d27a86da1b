package names

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
)

// The bounds of a zone. The names of a network over several nodes come from other nodes.
const (
	maxNames = 1 << 16 // names, and addresses that have one
	maxAddrs = 1 << 12 // of one name
	// maxZone bounds the encoded bytes of a zone. A zone that does not fit into a message could not be
	// sent, and no sandbox of the node would have names. A change sends two zones at most.
	maxZone = maxMessage / 2
)

// encodedSize bounds the bytes of a name with n addresses in a message: a byte of it may be written
// as six.
func encodedSize(name string, n int) int { return 8 + 6*len(name) + 44*n }

// bounded returns z without names that can be in no question or answer, and without those that are too many, and how
// many it has left out.
func (z Zone) bounded() (Zone, int) {
	bad, size := 0, 0
	for name, addrs := range z.Names {
		if size += encodedSize(name, len(addrs)); !askable(name) || len(addrs) > maxAddrs {
			bad++
		}
	}
	for _, name := range z.Owners {
		if size += encodedSize(name, 1); !askable(name) {
			bad++
		}
	}
	if bad == 0 && len(z.Names) <= maxNames && len(z.Owners) <= maxNames && size <= maxZone/2 {
		return z, 0
	}
	had := len(z.Names) + len(z.Owners)
	z.Names, z.Owners = maps.Clone(z.Names), maps.Clone(z.Owners)
	maps.DeleteFunc(z.Names, func(name string, _ []netip.Addr) bool { return !askable(name) })
	maps.DeleteFunc(z.Owners, func(_ netip.Addr, name string) bool { return !askable(name) })
	if len(z.Names) > maxNames {
		for _, name := range slices.Sorted(maps.Keys(z.Names))[maxNames:] { // always the same
			delete(z.Names, name)
		}
	}
	if len(z.Owners) > maxNames {
		for _, a := range slices.SortedFunc(maps.Keys(z.Owners), netip.Addr.Compare)[maxNames:] {
			delete(z.Owners, a)
		}
	}
	left := had - len(z.Names) - len(z.Owners)
	for name, addrs := range z.Names {
		if len(addrs) > maxAddrs {
			z.Names[name] = addrs[:maxAddrs]
			left++
		}
	}
	return z, left + z.shrink()
}

// shrink removes names until a zone is small enough, always the same ones, and returns how many. Names
// and owners have equal room.
func (z Zone) shrink() (left int) {
	names, owners := -maxZone/2, -maxZone/2
	for name, addrs := range z.Names {
		names += encodedSize(name, len(addrs))
	}
	for _, name := range z.Owners {
		owners += encodedSize(name, 1)
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(z.Names))) {
		if names <= 0 {
			break
		}
		names -= encodedSize(name, len(z.Names[name]))
		delete(z.Names, name)
		left++
	}
	for _, a := range slices.Backward(slices.SortedFunc(maps.Keys(z.Owners), netip.Addr.Compare)) {
		if owners <= 0 {
			break
		}
		owners -= encodedSize(z.Owners[a], 1)
		delete(z.Owners, a)
		left++
	}
	return left
}

// askable reports whether a name can be in a question: no part of it is empty or longer than 63
// bytes, and it is not longer than 253.
func askable(name string) bool {
	if len(name) > 253 {
		return false
	}
	part := 0
	for i := range len(name) {
		if name[i] != '.' {
			part++
			continue
		}
		if part == 0 || part > 63 {
			return false
		}
		part = 0
	}
	return part > 0 && part <= 63
}

// patch is the difference between two zones: one name of thousands is all that most changes are
// about.
type patch struct {
	Names  map[string][]netip.Addr `json:"names,omitempty"`
	Drop   []string                `json:"drop,omitempty"`
	Owners map[netip.Addr]string   `json:"owners,omitempty"`
	Disown []netip.Addr            `json:"disown,omitempty"`
}

// since returns the patch that turns old into z.
func (z Zone) since(old Zone) *patch {
	p := &patch{Names: map[string][]netip.Addr{}, Owners: map[netip.Addr]string{}}
	for name, addrs := range z.Names {
		if have, ok := old.Names[name]; !ok || !slices.Equal(have, addrs) {
			p.Names[name] = addrs
		}
	}
	for name := range old.Names {
		if _, ok := z.Names[name]; !ok {
			p.Drop = append(p.Drop, name)
		}
	}
	for a, name := range z.Owners {
		if have, ok := old.Owners[a]; !ok || have != name {
			p.Owners[a] = name
		}
	}
	for a := range old.Owners {
		if _, ok := z.Owners[a]; !ok {
			p.Disown = append(p.Disown, a)
		}
	}
	return p
}

// fill makes the missing maps of a decoded zone.
func (z *Zone) fill() {
	if z.Names == nil {
		z.Names = map[string][]netip.Addr{}
	}
	if z.Owners == nil {
		z.Owners = map[netip.Addr]string{}
	}
}

// apply changes a zone.
func (z Zone) apply(p *patch) {
	maps.Copy(z.Names, p.Names)
	for _, name := range p.Drop {
		delete(z.Names, name)
	}
	maps.Copy(z.Owners, p.Owners)
	for _, a := range p.Disown {
		delete(z.Owners, a)
	}
}

// clone returns a copy that later changes do not affect.
func (z Zone) clone() Zone { return Zone{maps.Clone(z.Names), maps.Clone(z.Owners)} }

// SetZone sets the names of a network; nil removes the network. Names that nobody can ask for are left out.
func (c *Client) SetZone(ctx context.Context, network string, z *Zone) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.zones[network]
	if z != nil {
		kept, left := z.bounded()
		if left > 0 {
			c.o.Logger.WarnContext(ctx, "names are left out: nobody can ask for them, or there are too many", "network", network, "names", left)
		}
		z = &kept
	}
	if had == (z != nil) && (z == nil || old.Equal(*z)) {
		return nil
	}
	if delete(c.zones, network); z != nil {
		c.zones[network] = z.clone()
	}
	if !c.state.phase.serves() {
		return nil // Add sends everything
	}
	err := c.changeLocked(network, old, had, z)
	if errors.Is(err, errShort) {
		c.behindLocked(err)
		return nil
	}
	if err != nil {
		c.killLocked()
		err = c.restoreLocked(ctx)
	}
	return err
}

// changeLocked sends the difference of a zone to the process, or all of the zone if the process
// does not have the old one.
func (c *Client) changeLocked(network string, old Zone, had bool, z *Zone) error {
	if had && z != nil {
		_, err := c.callLocked(request{Op: opPatch, Network: network, Patch: z.since(old)}, nil)
		if !errors.Is(err, errRefused) || errors.Is(err, errShort) {
			return err
		}
	}
	_, err := c.callLocked(request{Op: opZone, Network: network, Zone: z}, nil)
	return err
}
