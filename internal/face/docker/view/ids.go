package view

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/longshore/longshore/internal/core"
)

// EndpointID returns the id of a container's place on a network.
func EndpointID(container core.ID, network string) string {
	sum := sha256.Sum256([]byte(string(container) + "\x00" + network))
	return hex.EncodeToString(sum[:])
}
