package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxDigits is the length of the longest length, 2^64-1.
const maxDigits = 20

// Reader reads records. After an error it is of no more use.
type RecordReader struct {
	from *bufio.Reader
	max  int64
}

// NewReader reads records of at most limit bytes.
func NewRecordReader(r io.Reader, limit int64) *RecordReader {
	return &RecordReader{bufio.NewReader(r), limit}
}

// ErrTooLong is what a record above the limit is refused with.
var errRecordTooLong = errors.New("the record is too long") //nolint:gochecknoglobals // an error value

// Next returns the next record, which is the caller's. It ends with io.EOF, also
// where the stream breaks off within a record: there is no mark of an end. No
// more is allocated than was sent.
func (r *RecordReader) Next() ([]byte, error) {
	n, err := r.length()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r.from, n); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (r *RecordReader) length() (int64, error) {
	var digits []byte
	for {
		c, err := r.from.ReadByte()
		if err != nil {
			return 0, err
		}
		if c == '\n' {
			break
		}
		if digits = append(digits, c); len(digits) > maxDigits {
			return 0, badLength(digits)
		}
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0, badLength(digits)
	}
	if n > uint64(r.max) {
		return 0, fmt.Errorf("%w: %d bytes, and %d are taken", errRecordTooLong, n, r.max)
	}
	return int64(n), nil
}

func badLength(digits []byte) error {
	return fmt.Errorf("Failed to decode length '%s'", digits) //nolint:staticcheck // Mesos' text
}

// Write writes one record with one Write.
func WriteRecord(w io.Writer, record []byte) error {
	b := make([]byte, 0, len(record)+maxDigits+1)
	b = strconv.AppendInt(b, int64(len(record)), 10)
	b = append(b, '\n')
	_, err := w.Write(append(b, record...))
	return err
}
