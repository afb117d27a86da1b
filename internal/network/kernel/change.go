package kernel

import (
	"fmt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/settings"
)

// Change is something of the network's that another program has changed.
type Change struct {
	Text   string
	Mended bool
	Hint   string // advice, when it is not mended
}

// Mended returns a change that was mended, or could not be, because of err.
func Mended(err error, format string, args ...any) Change {
	c := Change{Text: fmt.Sprintf(format, args...), Mended: err == nil}
	if err != nil {
		c.Hint = "it cannot be restored: " + err.Error()
	}
	return c
}

// MendSettings restores the kernel parameters of a host, and returns the differences.
func MendSettings(h *settings.Host) (all []Change) {
	restored, others, err := h.Mend()
	if err != nil {
		all = append(all, Mended(err, "a kernel setting was changed"))
	}
	for _, d := range restored {
		all = append(all, Mended(nil, "kernel setting %s", d))
	}
	for _, d := range others {
		all = append(all, Change{Text: "kernel setting " + d.String(), Hint: d.Hint})
	}
	return all
}

// OtherEnd swaps the receive and transmit counters of the host's end of a link.
func OtherEnd(h core.NetStats, name string) core.NetStats {
	return core.NetStats{
		Name:    name,
		RxBytes: h.TxBytes, RxPackets: h.TxPackets, RxErrors: h.TxErrors, RxDropped: h.TxDropped,
		TxBytes: h.RxBytes, TxPackets: h.RxPackets, TxErrors: h.RxErrors, TxDropped: h.RxDropped,
	}
}
