package dbfile

import (
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// Tx is a transaction that writes. A bucket is named by the names that lead to it, and is created
// by the first write to it.
type Tx struct {
	tx   *bbolt.Tx
	skip func(bucket string) bool
	done ops
}

// Bolt returns bbolt's transaction, for reading, and for writing to buckets that are not copied.
func (t *Tx) Bolt() *bbolt.Tx { return t.tx }

// bucket returns the bucket at a path, and creates missing ones.
func (t *Tx) bucket(path string) (b *bbolt.Bucket, err error) {
	for i, name := range names(path) {
		if i == 0 {
			b, err = t.tx.CreateBucketIfNotExists([]byte(name))
		} else {
			b, err = b.CreateBucketIfNotExists([]byte(name))
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

func joined(bucket []string) (string, error) {
	for _, name := range bucket {
		if name == "" || strings.Contains(name, separator) {
			return "", errors.Join(errors.New("a bucket's name is empty or has a NUL"), errdefs.ErrInvalidArgument)
		}
	}
	return strings.Join(bucket, separator), nil
}

// Put stores a value.
func (t *Tx) Put(key string, value []byte, bucket ...string) error {
	path, err := joined(bucket)
	if err != nil {
		return err
	}
	b, err := t.bucket(path)
	if err != nil {
		return err
	}
	if err := b.Put([]byte(key), value); err != nil {
		return err
	}
	if !t.skip(bucket[0]) {
		t.done.put(path, key, value)
	}
	return nil
}

// Delete deletes a value, if there is one.
func (t *Tx) Delete(key string, bucket ...string) error {
	path, err := joined(bucket)
	if err != nil || key == "" {
		return err
	}
	b, err := t.bucket(path)
	if err != nil {
		return err
	}
	if err := b.Delete([]byte(key)); err != nil {
		return err
	}
	if !t.skip(bucket[0]) {
		t.done.remove(path, key)
	}
	return nil
}

// NextSequence returns a number that it has not returned before for this bucket.
func (t *Tx) NextSequence(bucket ...string) (uint64, error) {
	path, err := joined(bucket)
	if err != nil {
		return 0, err
	}
	b, err := t.bucket(path)
	if err != nil {
		return 0, err
	}
	n, err := b.NextSequence()
	if err == nil && !t.skip(bucket[0]) {
		t.done.sequence(path, n)
	}
	return n, err
}
