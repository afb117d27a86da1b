package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
)

// The first byte of each stored value says what follows.
const (
	plain  = 0 // the value
	sealed = 1 // a nonce and the encrypted value
)

// sealKey is where the wrapped data key is kept. It is the only record without a first byte.
const sealKey = "seal"

// defaultIterations makes guessing a passphrase slow.
const defaultIterations = 600_000

// wrapped is the data key as it is stored: encrypted with a key that is made of the
// passphrase. So another passphrase does not change what the data key has sealed.
type wrapped struct {
	KDF        string `json:"kdf"`
	Iterations int    `json:"iterations"`
	Salt       []byte `json:"salt"`
	Key        []byte `json:"key"`
}

const kdf = "pbkdf2-sha256"

// maxIterations bounds what a damaged or foreign record may cost.
const maxIterations = 10_000_000

// sealer encrypts and decrypts values.
type sealer struct{ aead cipher.AEAD }

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
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

// wrapping is the AEAD that a passphrase makes.
func (w wrapped) wrapping(passphrase []byte) (cipher.AEAD, error) {
	if w.KDF != kdf || w.Iterations < 1 || w.Iterations > maxIterations || len(w.Salt) < 8 {
		return nil, fmt.Errorf("the store is sealed in a way that this hub does not know: %w", errdefs.ErrFailedPrecondition)
	}
	key, err := pbkdf2.Key(sha256.New, string(passphrase), w.Salt, w.Iterations, 32)
	if err != nil {
		return nil, err
	}
	return newAEAD(key)
}

// unlock reads the data key, or makes one in an empty store. PermissionDenied when the
// passphrase is wrong.
func (s *Store) unlock(ctx context.Context, passphrase []byte, iterations int) error {
	if len(passphrase) == 0 {
		return fmt.Errorf("the store needs a passphrase: %w", errdefs.ErrInvalidArgument)
	}
	asked, done := s.bounded(ctx)
	defer done()
	resp, err := s.client.Get(asked, s.prefix+sealKey)
	if err != nil {
		return fmt.Errorf("read the store's key: %w", answer(asked, err))
	}
	if len(resp.Kvs) == 0 {
		err := s.makeKey(ctx, passphrase, iterations)
		if errdefs.IsAborted(err) { // another hub was first
			return s.unlock(ctx, passphrase, iterations)
		}
		return err
	}
	var w wrapped
	if err := json.Unmarshal(resp.Kvs[0].Value, &w); err != nil {
		return fmt.Errorf("read the store's key: %w: %w", errdefs.ErrDataLoss, err)
	}
	wrapping, err := w.wrapping(passphrase)
	if err != nil {
		return err
	}
	key, err := wrapping.Open(nil, nil, w.Key, []byte(sealKey))
	if err != nil {
		return fmt.Errorf("the store cannot be unsealed: the passphrase is wrong: %w", errdefs.ErrPermissionDenied)
	}
	s.sealer.aead, err = newAEAD(key)
	return err
}

// makeKey makes the data key of an empty store.
func (s *Store) makeKey(ctx context.Context, passphrase []byte, iterations int) error {
	if iterations == 0 {
		iterations = defaultIterations
	}
	key, salt := make([]byte, 32), make([]byte, 16)
	_, _ = rand.Read(key) // it never fails
	_, _ = rand.Read(salt)
	w := wrapped{KDF: kdf, Iterations: iterations, Salt: salt}
	wrapping, err := w.wrapping(passphrase)
	if err != nil {
		return err
	}
	w.Key = wrapping.Seal(nil, nil, key, []byte(sealKey)) //nolint:gosec // it makes its own nonce
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if s.sealer.aead, err = newAEAD(key); err != nil {
		return err
	}
	_, err = s.commit(ctx, []Write{{Key: sealKey, If: Absent}}, [][]byte{data})
	return err
}
