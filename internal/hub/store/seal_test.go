package store

import (
	"testing"

	"github.com/containerd/errdefs"
)

// FuzzOpen: any record of the database is decrypted, or refused as damaged.
func FuzzOpen(f *testing.F) {
	aead, err := newAEAD(make([]byte, 32))
	if err != nil {
		f.Fatal(err)
	}
	s := sealer{aead}
	f.Add("a", s.seal("a", []byte("value")))
	f.Add("b", s.seal("a", []byte("value")))
	f.Add("a", []byte{plain, 'x'})
	f.Add("a", []byte{})
	f.Add("a", []byte{sealed})
	f.Fuzz(func(t *testing.T, key string, stored []byte) {
		value, err := s.open(key, stored)
		if err != nil {
			if !errdefs.IsDataLoss(err) || value != nil {
				t.Errorf("%q, %v", value, err)
			}
			return
		}
		// A sealed record opens at no other key.
		if _, err := s.open(key+"x", stored); stored[0] == sealed && !errdefs.IsDataLoss(err) {
			t.Errorf("a record of %q is read at %qx: %v", key, key, err)
		}
	})
}
