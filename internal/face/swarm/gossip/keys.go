package gossip

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Key is an encryption key of the members.
type Key [16]byte

// TimedKey is a key as the managers give it.
type TimedKey struct {
	Key  []byte
	Time uint64 // Lamport's
}

// Keyring returns the keys in a member's order: the encrypting one first. That is the second
// oldest, so that all members have a key before anyone uses it, and can still decrypt messages with
// the one before. InvalidArgument if there is none, or one of another length.
func Keyring(given []TimedKey) ([]Key, error) {
	list := slices.SortedFunc(slices.Values(given), func(a, b TimedKey) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), bytes.Compare(a.Key, b.Key))
	})
	var keys []Key
	for _, k := range list {
		if len(k.Key) != len(Key{}) {
			return nil, fmt.Errorf("keys of the gossip: one has %d bytes: %w", len(k.Key), errdefs.ErrInvalidArgument)
		}
		if !slices.Contains(keys, Key(k.Key)) {
			keys = append(keys, Key(k.Key))
		}
	}
	switch len(keys) {
	case 0:
		return nil, fmt.Errorf("keys of the gossip: there are none: %w", errdefs.ErrInvalidArgument)
	case 1:
	default:
		keys[0], keys[1] = keys[1], keys[0]
	}
	return keys, nil
}
