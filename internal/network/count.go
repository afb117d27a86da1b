package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/overlay"
)

// hostCounters has the counters of all links of our own namespace, for a few microseconds each;
// netlink's dump costs many times that. The thread's, not the process's: /proc/self is the first
// thread, which stays for good in a sandbox's namespace that it could not leave, while every other
// thread is in ours.
const hostCounters = "/proc/thread-self/net/dev"

// Stats implements core.Network. With the builtin bridge it reads the host's ends of the links and
// swaps receive and transmit counters; with CNI it enters each namespace.
func (n *Network) Stats(ctx context.Context, reqs []core.NetworkRequest) (map[core.ID][]core.NetStats, error) {
	out := make(map[core.ID][]core.NetStats, len(reqs))
	var host map[string]core.NetStats
	overlays := overlay.Counted{}
	for i := range reqs {
		req := &reqs[i]
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		switch netconf.Mode(req.Last.Mode) {
		case netconf.ModeBuiltin:
			if host == nil {
				text, err := os.ReadFile(hostCounters)
				if err != nil {
					return nil, fmt.Errorf("read interface counters: %w", err)
				}
				host = counters(text)
			}
			for _, a := range req.Last.Interfaces {
				b, ok := n.bridges.on(a.Network)
				if !ok {
					if c, ok := overlays.Of(n.Overlays, req, a); ok {
						out[req.Sandbox] = append(out[req.Sandbox], c)
					}
					continue
				}
				if c, ok := host[b.LinkName(req.Sandbox)]; ok {
					out[req.Sandbox] = append(out[req.Sandbox], kernel.OtherEnd(c, a.Interface))
				}
			}
		case netconf.ModeCNI:
			found, err := countInside(req.Namespace)
			if err != nil {
				return nil, fmt.Errorf("read interface counters of sandbox %s: %w", req.Sandbox.Short(), err)
			}
			if len(found) > 0 {
				out[req.Sandbox] = found
			}
		}
	}
	return out, nil
}

// counters parses the kernel's table: two header lines, then for each interface its name, a colon,
// and eight numbers each for received and sent packets. Lines of another form are skipped.
func counters(text []byte) map[string]core.NetStats {
	out := map[string]core.NetStats{}
	for line := range bytes.Lines(text) {
		name, numbers, ok := bytes.Cut(line, []byte{':'})
		if !ok {
			continue
		}
		var n [16]uint64
		i := 0
		for f := range bytes.FieldsSeq(numbers) {
			if i == len(n) {
				break
			}
			v, ok := decimal(f)
			if !ok {
				break
			}
			n[i] = v
			i++
		}
		if i < len(n) {
			continue
		}
		s := core.NetStats{
			Name:    string(bytes.TrimSpace(name)),
			RxBytes: n[0], RxPackets: n[1], RxErrors: n[2], RxDropped: n[3],
			TxBytes: n[8], TxPackets: n[9], TxErrors: n[10], TxDropped: n[11],
		}
		out[s.Name] = s
	}
	return out
}

func decimal(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(b) > 0
}

// countInside reads the counters inside a namespace; nil when it no longer exists.
func countInside(path string) ([]core.NetStats, error) {
	h, f, err := kernel.Inside(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) { // EINVAL: unpinned, a plain file now
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { h.Close(); _ = f.Close() }()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var found []core.NetStats
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Statistics == nil {
			continue
		}
		s := a.Statistics
		found = append(found, core.NetStats{
			Name:    a.Name,
			RxBytes: s.RxBytes, RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
			TxBytes: s.TxBytes, TxPackets: s.TxPackets, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
		})
	}
	slices.SortFunc(found, func(a, b core.NetStats) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}
