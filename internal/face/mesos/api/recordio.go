package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxDigits is the number of digits of the largest length, 2^64-1.
const maxDigits = 20

// RecordReader reads a stream of records as Mesos frames them: the length in decimal
// digits, a newline, and that many bytes. It cannot be used after an error.
type RecordReader struct {
	from *bufio.Reader
	max  int64
}

// NewRecordReader returns a reader of records of at most limit bytes.
func NewRecordReader(r io.Reader, limit int64) *RecordReader {
	return &RecordReader{bufio.NewReader(r), limit}
}

// errRecordTooLong is returned for a record above the limit.
var errRecordTooLong = errors.New("the record is too long") //nolint:gochecknoglobals // an error value

// Next returns the next record. It returns io.EOF at the end of the stream, and also if
// the stream ends within a record, because RecordIO does not mark the end. It never
// allocates more than was sent.
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
		return 0, fmt.Errorf("%w: %d bytes, at most %d", errRecordTooLong, n, r.max)
	}
	return int64(n), nil
}

func badLength(digits []byte) error {
	return fmt.Errorf("Failed to decode length '%s'", digits) //nolint:staticcheck // Mesos' text
}

// WriteRecord writes a record to w in one call of Write.
func WriteRecord(w io.Writer, record []byte) error {
	b := make([]byte, 0, len(record)+maxDigits+1)
	b = strconv.AppendInt(b, int64(len(record)), 10)
	b = append(b, '\n')
	_, err := w.Write(append(b, record...))
	return err
}
