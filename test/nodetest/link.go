package nodetest

import "testing"

// Link is a cable between a bridge in the test's network namespace and a namespace of its own,
// where a node can run (Options.NetNS).
type Link struct {
	t                    *testing.T
	bridge, name, prefix string
}

// Bridge makes a bridge in the test's network namespace, with an address and the length of its
// network's prefix.
func Bridge(t *testing.T, name, prefix string) {
	t.Helper()
	Lines(t, "ip", "link", "add", name, "type", "bridge")
	Lines(t, "ip", "address", "add", prefix, "dev", name)
	Lines(t, "ip", "link", "set", name, "up")
}

// Plug makes a network namespace of that name with a cable to a bridge, so that others reach it at
// its address.
func Plug(t *testing.T, bridge, name, prefix string) *Link {
	t.Helper()
	l := &Link{t, bridge, name, prefix}
	l.make()
	l.Mend()
	return l
}

func (l *Link) make() {
	l.t.Helper()
	Lines(l.t, "ip", "netns", "add", l.name)
	Lines(l.t, "ip", "link", "add", l.outer(), "master", l.bridge, "type", "veth", "peer", "name", "eth0", "netns", l.name)
	Lines(l.t, "ip", "-n", l.name, "link", "set", "lo", "up")
	Lines(l.t, "ip", "-n", l.name, "address", "add", l.prefix, "dev", "eth0")
	Lines(l.t, "ip", "-n", l.name, "link", "set", "eth0", "up")
}

func (l *Link) outer() string { return "to-" + l.name }

// NetNS is the path of the namespace.
func (l *Link) NetNS() string { return "/run/netns/" + l.name }

// Cut pulls the cable out: nothing passes any more, and no connection is ended by that.
func (l *Link) Cut() {
	l.t.Helper()
	Lines(l.t, "ip", "link", "set", l.outer(), "down")
}

// Mend undoes Cut.
func (l *Link) Mend() {
	l.t.Helper()
	Lines(l.t, "ip", "link", "set", l.outer(), "up")
}

// Renew replaces the namespace by an empty one, as a boot does. The cable is cut.
func (l *Link) Renew() {
	l.t.Helper()
	Lines(l.t, "ip", "link", "delete", l.outer()) // which outlives the namespace's end for a while
	Lines(l.t, "ip", "netns", "delete", l.name)
	l.make()
}
