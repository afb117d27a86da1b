// Package nlwrap wraps netlink's list calls. What is listed may change meanwhile: the kernel then
// marks the answer as interrupted, or the call fails with EINTR. These wrappers repeat the call.
//
// It knows nothing about Longshore. Start at retry.
package nlwrap

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attempts is how often an interrupted list is requested. On a node where links come and go all
// the time, the last, partial answer is returned with netlink.ErrDumpInterrupted.
const attempts = 8

// Handle is a netlink handle whose list calls retry.
type Handle struct {
	*netlink.Handle
}

func retry[T any](list func() (T, error)) (T, error) {
	var got T
	var err error
	for range attempts {
		got, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return got, err
}

// LinkList returns all links.
func (h Handle) LinkList() ([]netlink.Link, error) {
	return retry(h.Handle.LinkList) //nolint:forbidigo // retry repeats it
}

// LinkByName returns one link.
func (h Handle) LinkByName(name string) (netlink.Link, error) {
	return retry(func() (netlink.Link, error) { return h.Handle.LinkByName(name) })
}

// AddrList returns the addresses of link; a nil link means all links, family 0 all families.
func (h Handle) AddrList(link netlink.Link, family int) ([]netlink.Addr, error) {
	return retry(func() ([]netlink.Addr, error) { return h.Handle.AddrList(link, family) }) //nolint:forbidigo // retry repeats it
}

// RouteList returns the routes of the main table through link; a nil link means all links.
func (h Handle) RouteList(link netlink.Link, family int) ([]netlink.Route, error) {
	return retry(func() ([]netlink.Route, error) { return h.Handle.RouteList(link, family) }) //nolint:forbidigo // retry repeats it
}

// RouteListFiltered returns the routes that match filter in the fields of mask.
func (h Handle) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return retry(func() ([]netlink.Route, error) { return h.Handle.RouteListFiltered(family, filter, mask) }) //nolint:forbidigo // retry repeats it
}

// NeighList returns the neighbours, or with AF_BRIDGE the forwarding entries, of a link.
func (h Handle) NeighList(index, family int) ([]netlink.Neigh, error) {
	return retry(func() ([]netlink.Neigh, error) { return h.Handle.NeighList(index, family) }) //nolint:forbidigo // retry repeats it
}

// QdiscList returns the queueing disciplines of link.
func (h Handle) QdiscList(link netlink.Link) ([]netlink.Qdisc, error) {
	return retry(func() ([]netlink.Qdisc, error) { return h.Handle.QdiscList(link) }) //nolint:forbidigo // retry repeats it
}

// XfrmStateList returns the security associations of a family.
func (h Handle) XfrmStateList(family int) ([]netlink.XfrmState, error) {
	return retry(func() ([]netlink.XfrmState, error) { return h.Handle.XfrmStateList(family) }) //nolint:forbidigo // retry repeats it
}

// XfrmPolicyList returns the policies of IPsec of a family.
func (h Handle) XfrmPolicyList(family int) ([]netlink.XfrmPolicy, error) {
	return retry(func() ([]netlink.XfrmPolicy, error) { return h.Handle.XfrmPolicyList(family) }) //nolint:forbidigo // retry repeats it
}
