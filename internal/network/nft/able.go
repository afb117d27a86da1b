package nft

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
)

// Able says why this kernel takes none of our rules, FailedPrecondition.
func Able() error {
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTablesOfFamily(nftables.TableFamilyINet)
	}
	if err != nil {
		return fmt.Errorf("this kernel has no nftables, load its module (modprobe nf_tables): %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return nil
}
