package engine

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// records are the store's records, with the reads and changes that only this package needs.
type records struct{ scope.Records }

// newID returns a new random ID. It asks the kernel itself: crypto/rand links ciphers and
// hashes, which a slim build has no other use for.
func newID() core.ID {
	var b [32]byte
	for got := 0; got < len(b); {
		n, err := unix.Getrandom(b[got:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("the kernel gives no random numbers: %v", err)) // it does since Linux 3.17
		}
		got += max(n, 0)
	}
	return core.ID(hex.EncodeToString(b[:]))
}

// step moves a container to the next state of verb.
func step(c *core.Container, verb core.Verb) error {
	next, ok := core.NextContainer(c.State, verb)
	if !ok {
		return fmt.Errorf("it is %s: %w", c.State, errdefs.ErrFailedPrecondition)
	}
	c.State = next
	return nil
}
