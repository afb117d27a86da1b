// Package archive is the form of a hub's backup: records, and a sum by which it is seen that none
// is missing or damaged.
//
// It does not know what the records are. Start at NewWriter and Read.
package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"time"

	"github.com/containerd/errdefs"
)

// A backup is a line that says what it is, a line of JSON, and the records in the order of their
// keys: each with the lengths of its key and of its value. A length of zero ends them, and the
// SHA-256 of all that is before it ends the backup.
const magic = "longshore-hub backup 1\n"

// The limits of what is read.
const (
	maxHead  = 64 << 10
	maxKey   = 4 << 10
	maxValue = 16 << 20
)

// Info is what a backup says of itself.
type Info struct {
	Made     time.Time `json:"made"`
	Revision int64     `json:"revision"`
}

// Writer writes a backup.
type Writer struct {
	to  io.Writer
	sum hash.Hash
	out *bufio.Writer
}

// NewWriter begins a backup.
func NewWriter(w io.Writer, info Info) (*Writer, error) {
	head, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	b := &Writer{to: w, sum: sha256.New()}
	b.out = bufio.NewWriterSize(io.MultiWriter(w, b.sum), 64<<10)
	_, _ = b.out.WriteString(magic) // Close has the error
	_, err = b.out.Write(append(head, '\n'))
	return b, err
}

// Add writes a record. Their keys are in order.
func (w *Writer) Add(key string, value []byte) error {
	var lengths []byte
	lengths = binary.AppendUvarint(lengths, uint64(len(key)))
	lengths = binary.AppendUvarint(lengths, uint64(len(value)))
	_, _ = w.out.Write(lengths)
	_, _ = w.out.WriteString(key)
	_, err := w.out.Write(value)
	return err
}

// Close ends the backup. Without it, it is not whole.
func (w *Writer) Close() error {
	_ = w.out.WriteByte(0)
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	if _, err := w.to.Write(w.sum.Sum(nil)); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// hashed reads, and sums what was read.
type hashed struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (h *hashed) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	_, _ = h.sum.Write(p[:n])
	return n, err
}

// ReadByte implements io.ByteReader.
func (h *hashed) ReadByte() (byte, error) {
	b, err := h.r.ReadByte()
	if err == nil {
		_, _ = h.sum.Write([]byte{b})
	}
	return b, err
}

// damaged is why a backup cannot be used: what it lacks, or that its file cannot be read.
func damaged(what string, err error) error {
	if file := new(fs.PathError); errors.As(err, &file) {
		return fmt.Errorf("read the backup: %w", err)
	}
	return fmt.Errorf("the backup is damaged or incomplete: %s: %w", what, errdefs.ErrDataLoss)
}

// Read calls fn with each record of a backup, and returns nil when it was whole: until then what fn
// is called with is not to be trusted. DataLoss when it is damaged.
func Read(r io.Reader, fn func(key string, value []byte) error) (info Info, err error) {
	h := &hashed{bufio.NewReaderSize(r, 64<<10), sha256.New()}
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(h, begin); err != nil || string(begin) != magic {
		return info, damaged("it is not a backup of a hub", err)
	}
	var head []byte
	for {
		b, err := h.ReadByte()
		if err != nil || len(head) > maxHead {
			return info, damaged("its head", err)
		}
		if b == '\n' {
			break
		}
		head = append(head, b)
	}
	if err := json.Unmarshal(head, &info); err != nil {
		return info, damaged("its head", nil)
	}
	for last := ""; ; {
		n, err := binary.ReadUvarint(h)
		if err != nil || n > maxKey {
			return info, damaged("a key", err)
		}
		if n == 0 {
			break
		}
		size, err := binary.ReadUvarint(h)
		if err != nil || size > maxValue {
			return info, damaged("a record", err)
		}
		key := make([]byte, n)
		if _, err := io.ReadFull(h, key); err != nil {
			return info, damaged("a key", err)
		}
		var value bytes.Buffer // it grows with what is there, not with what is claimed
		if _, err := io.CopyN(&value, h, int64(size)); err != nil {
			return info, damaged("a record", err)
		}
		if string(key) <= last {
			return info, damaged("its records are out of order", nil)
		}
		last = string(key)
		if err := fn(last, value.Bytes()); err != nil {
			return info, err
		}
	}
	want, have := h.sum.Sum(nil), make([]byte, sha256.Size)
	if _, err := io.ReadFull(h.r, have); err != nil {
		return info, damaged("its sum", err)
	}
	if !bytes.Equal(want, have) {
		return info, damaged("its checksum differs", nil)
	}
	if _, err := h.r.ReadByte(); !errors.Is(err, io.EOF) {
		return info, damaged("it has data after its end", err)
	}
	return info, nil
}
