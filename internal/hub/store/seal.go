package store

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"

	"github.com/containerd/errdefs"
)

// The first byte of each stored value is its form.
const (
	plain  = 0 // the value
	sealed = 1 // a nonce and the encrypted value
)

// sealer encrypts and decrypts values.
type sealer struct{ aead cipher.AEAD }

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// open is how a value is stored that is no secret.
func open(value []byte) []byte {
	stored := make([]byte, 1+len(value))
	stored[0] = plain
	copy(stored[1:], value)
	return stored
}

// seal encrypts a value for one key of the store: it cannot be read at another one.
func (s sealer) seal(key string, value []byte) []byte {
	return s.aead.Seal([]byte{sealed}, nil, value, []byte(key)) //nolint:gosec // it makes its own nonces
}

// open returns the value of a stored record. DataLoss when it was sealed with another data
// key, at another key of the store, or was changed.
func (s sealer) open(key string, stored []byte) ([]byte, error) {
	switch {
	case len(stored) == 0:
		return nil, fmt.Errorf("record %s is empty: %w", key, errdefs.ErrDataLoss)
	case stored[0] == plain:
		return stored[1:], nil
	case stored[0] != sealed:
		return nil, fmt.Errorf("record %s is of an unknown kind: %w", key, errdefs.ErrDataLoss)
	}
	value, err := s.aead.Open(nil, nil, stored[1:], []byte(key))
	if err != nil {
		return nil, fmt.Errorf("record %s cannot be decrypted: it was changed or moved: %w", key, errdefs.ErrDataLoss)
	}
	return value, nil
}
