package network

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/longshore/longshore/internal/network/nft"
)

// untracked has the kernel not remember as connections what overlays send from node to node: that
// takes up to a fifth of the connections that their sandboxes can make. Its zero value has told the
// kernel nothing.
type untracked struct {
	mu     sync.Mutex // guards at, unsure
	at     []netip.AddrPort
	unsure bool // the kernel may have been told something else
}

// doubt has the next follow tell the kernel in any case.
func (u *untracked) doubt() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unsure = true
}

// follow tells the kernel where overlays send and are sent to, but for the one that ends. Where it
// cannot be told, all goes on as before. No overlay is opened or closed meanwhile.
func (u *untracked) follow(all []*over, ends *over, log *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []netip.AddrPort
	for _, v := range all {
		if v == ends {
			continue // which may be locked
		}
		v.use.RLock()
		at := netip.AddrPortFrom(v.def.Local, v.def.Port)
		v.use.RUnlock()
		if !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	if !u.unsure && slices.Equal(list, u.at) {
		return
	}
	if err := nft.Untrack(list); err != nil {
		log.Warn("the kernel remembers packets of overlays between nodes as connections, which makes them slower", "error", err.Error())
	}
	u.at, u.unsure = list, false
}
