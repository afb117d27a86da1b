package vxlan

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network/nft"
)

// Check returns FailedPrecondition with the first missing association, policy or rule of encrypted
// networks, which another program has removed.
func (k *Keyring) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.networks) == 0 {
		return nil
	}
	missing := func(format string, args ...any) error {
		return fmt.Errorf("encrypted networks: "+format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
	}
	intact, err := nft.SealIntact(k.ns, k.protectedLocked())
	if err != nil {
		return fmt.Errorf("encrypted networks: %w", err)
	}
	if !intact {
		return missing("the rules that keep packets from being sent in clear are not what they should be")
	}
	h, err := k.dialLocked()
	if err != nil {
		return err
	}
	have, err := read(h)
	if err != nil {
		return err
	}
	for p := range k.pairsLocked() {
		for i, key := range k.keys {
			in, out := newSA(p.remote, p.local, key), newSA(p.local, p.remote, key)
			_, comes := have.states[in.saID]
			_, goes := have.states[out.saID]
			if !comes || i == 0 && (!goes || have.out[p] != out.spi) {
				return missing("an association or a policy for %s is missing", p.remote)
			}
		}
	}
	return nil
}
