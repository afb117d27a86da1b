package store

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/subprocess"
)

// sealKey is where the wrapped data key is kept. It is the only record without a first byte.
const sealKey = "seal"

// Wrapping encrypts the data key: by a passphrase, or a program that asks a key management service.
type Wrapping struct {
	Passphrase []byte
	// Iterations make guessing the passphrase slow; 0 is the default.
	Iterations int
	// Command is the path of the program. It is run with the argument wrap or unwrap, gets the one on
	// its standard input, and writes the other to its standard output.
	Command string
}

// defaultIterations makes guessing a passphrase slow.
const defaultIterations = 600_000

// wrapped is the stored data key: encrypted with a key derived from the passphrase, or by a
// program. So a new passphrase does not change sealed records.
type wrapped struct {
	KDF        string `json:"kdf"`
	Iterations int    `json:"iterations,omitempty"`
	Salt       []byte `json:"salt,omitempty"`
	Key        []byte `json:"key"`
}

// The ways to wrap a data key.
const (
	kdf       = "pbkdf2-sha256"
	byCommand = "command"
)

// maxIterations bounds the cost of a damaged or foreign record.
const maxIterations = 10_000_000

// The limits of a program that wraps: how long it may take, and how much it may write.
const (
	commandTime = 30 * time.Second
	maxWrapped  = 64 << 10
)

// wrapping is the AEAD that a passphrase makes.
func (w wrapped) wrapping(passphrase []byte) (cipher.AEAD, error) {
	if w.KDF != kdf || w.Iterations < 1 || w.Iterations > maxIterations || len(w.Salt) < 8 {
		return nil, fmt.Errorf("the store is sealed in a way that this hub does not support: %w", errdefs.ErrFailedPrecondition)
	}
	key, err := pbkdf2.Key(sha256.New, string(passphrase), w.Salt, w.Iterations, keySize)
	if err != nil {
		return nil, err
	}
	return newAEAD(key)
}

// keySize is the size of the data key, in bytes.
const keySize = 32

// check refuses a Wrapping with neither a passphrase nor a program, or with both.
func (by Wrapping) check() error {
	if (len(by.Passphrase) == 0) == (by.Command == "") {
		return fmt.Errorf("the store needs either a passphrase or a program to wrap its key: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// wrap encrypts the data key.
func (by Wrapping) wrap(ctx context.Context, key []byte) (w wrapped, err error) {
	if by.Command != "" {
		w.KDF = byCommand
		w.Key, err = by.run(ctx, "wrap", key)
		return w, err
	}
	w = wrapped{KDF: kdf, Iterations: by.Iterations, Salt: make([]byte, 16)}
	if w.Iterations == 0 {
		w.Iterations = defaultIterations
	}
	_, _ = rand.Read(w.Salt) // it never fails
	aead, err := w.wrapping(by.Passphrase)
	if err != nil {
		return w, err
	}
	w.Key = aead.Seal(nil, nil, key, []byte(sealKey)) //nolint:gosec // it makes its own nonce
	return w, nil
}

// unwrap decrypts the data key. PermissionDenied when the passphrase is wrong.
func (by Wrapping) unwrap(ctx context.Context, w wrapped) (key []byte, err error) {
	switch {
	case w.KDF == byCommand && by.Command == "":
		return nil, fmt.Errorf("the store's key is wrapped by a program, and not by a passphrase: %w", errdefs.ErrFailedPrecondition)
	case w.KDF == byCommand:
		key, err = by.run(ctx, "unwrap", w.Key)
		if err == nil && len(key) != keySize {
			err = fmt.Errorf("the program that unwraps the store's key wrote %d bytes, not %d: %w", len(key), keySize, errdefs.ErrFailedPrecondition)
		}
		return key, err
	case by.Command != "":
		return nil, fmt.Errorf("the store's key is wrapped by a passphrase, and not by a program: %w", errdefs.ErrFailedPrecondition)
	}
	aead, err := w.wrapping(by.Passphrase)
	if err != nil {
		return nil, err
	}
	key, err = aead.Open(nil, nil, w.Key, []byte(sealKey))
	if err != nil {
		return nil, fmt.Errorf("the store cannot be unsealed: the passphrase is wrong: %w", errdefs.ErrPermissionDenied)
	}
	return key, nil
}

// run runs the program. Its input and output appear in no message.
func (by Wrapping) run(ctx context.Context, what string, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTime, fmt.Errorf("it takes longer than %s", commandTime))
	defer cancel()
	out, stderr := &subprocess.Head{Max: maxWrapped}, &subprocess.Head{Max: 1 << 10}
	cmd := subprocess.Command(ctx, by.Command, what)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, stderr
	err := subprocess.Run(ctx, cmd)
	switch {
	case err == nil && out.Truncated():
		err = fmt.Errorf("it wrote more than %d bytes", maxWrapped)
	case err == nil && len(out.Bytes()) == 0:
		err = errors.New("it wrote nothing")
	}
	if err != nil {
		return nil, fmt.Errorf("the program %s could not %s the store's key: %w: %w: %q", by.Command, what, errdefs.ErrFailedPrecondition, err, stderr)
	}
	return out.Bytes(), nil
}

// unlock reads the data key, or makes one in an empty store. PermissionDenied when the
// passphrase is wrong.
func (s *Store) unlock(ctx context.Context, by Wrapping) error {
	w, _, err := s.wrapped(ctx)
	if errdefs.IsNotFound(err) {
		err = s.makeKey(ctx, by)
		if errdefs.IsAborted(err) { // another hub was first
			return s.unlock(ctx, by)
		}
		return err
	}
	if err != nil {
		return err
	}
	key, err := by.unwrap(ctx, w)
	if err != nil {
		return err
	}
	return s.use(key)
}

func (s *Store) use(key []byte) (err error) {
	s.key = key
	s.sealer.aead, err = newAEAD(key)
	return err
}

// wrapped is the data key's record, and its revision. NotFound when there is none.
func (s *Store) wrapped(ctx context.Context) (w wrapped, rev int64, err error) {
	r, err := s.db.Get(ctx, sealKey)
	if err != nil {
		return w, 0, fmt.Errorf("read the store's key: %w", err)
	}
	if err := json.Unmarshal(r.Value, &w); err != nil {
		return w, 0, fmt.Errorf("read the store's key: %w: %w", errdefs.ErrDataLoss, err)
	}
	return w, r.Rev, nil
}

// makeKey makes the data key of an empty store.
func (s *Store) makeKey(ctx context.Context, by Wrapping) error {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // it never fails
	if err := s.use(key); err != nil {
		return err
	}
	return s.keep(ctx, by, Absent)
}

// Rekey wraps the data key in another way. Sealed records do not change. Aborted if another Rekey
// runs at this moment.
func (s *Store) Rekey(ctx context.Context, by Wrapping) error {
	if err := by.check(); err != nil {
		return err
	}
	_, rev, err := s.wrapped(ctx)
	if err != nil {
		return err
	}
	return s.keep(ctx, by, rev)
}

// keep stores the wrapped data key, after checking that it can be unwrapped.
func (s *Store) keep(ctx context.Context, by Wrapping, condition int64) error {
	w, err := by.wrap(ctx, s.key)
	if err != nil {
		return err
	}
	if by.Command != "" {
		back, err := by.unwrap(ctx, w)
		if err != nil {
			return err
		}
		if subtle.ConstantTimeCompare(back, s.key) != 1 || bytes.Contains(w.Key, s.key) {
			return fmt.Errorf("the program %s does not wrap the store's key: %w", by.Command, errdefs.ErrFailedPrecondition)
		}
	}
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	_, err = s.db.Commit(ctx, []Write{{Key: sealKey, Value: data, If: condition}})
	return err
}
