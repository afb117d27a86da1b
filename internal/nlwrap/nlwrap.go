// Package nlwrap is the door to netlink's list calls. The kernel may change
// what is listed while it is listed: it then marks the answer as interrupted,
// or the call fails with EINTR. These wrappers ask again.
//
// It knows nothing of Longshore. Start at retry.
package nlwrap

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attempts bounds how often an interrupted list is asked for again. On a node
// where links come and go all the time the last, partial answer is returned
// with netlink.ErrDumpInterrupted.
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

// LinkList lists all links.
func (h Handle) LinkList() ([]netlink.Link, error) {
	return retry(h.Handle.LinkList) //nolint:forbidigo // this is where it is retried
}

// LinkByName finds one link.
func (h Handle) LinkByName(name string) (netlink.Link, error) {
	return retry(func() (netlink.Link, error) { return h.Handle.LinkByName(name) })
}

// AddrList lists the addresses of link; a nil link means all links, family 0
// all families.
func (h Handle) AddrList(link netlink.Link, family int) ([]netlink.Addr, error) {
	return retry(func() ([]netlink.Addr, error) { return h.Handle.AddrList(link, family) }) //nolint:forbidigo // this is where it is retried
}

// RouteList lists the routes of the main table through link; a nil link means
// all links.
func (h Handle) RouteList(link netlink.Link, family int) ([]netlink.Route, error) {
	return retry(func() ([]netlink.Route, error) { return h.Handle.RouteList(link, family) }) //nolint:forbidigo // this is where it is retried
}

// RouteListFiltered lists the routes that match filter in the fields of mask.
func (h Handle) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return retry(func() ([]netlink.Route, error) { return h.Handle.RouteListFiltered(family, filter, mask) }) //nolint:forbidigo // this is where it is retried
}

// QdiscList lists the queueing disciplines of link.
func (h Handle) QdiscList(link netlink.Link) ([]netlink.Qdisc, error) {
	return retry(func() ([]netlink.Qdisc, error) { return h.Handle.QdiscList(link) }) //nolint:forbidigo // this is where it is retried
}
