package control

import (
	"bufio"
	"io"
	"slices"
)

// exportChunk is the number of bytes of an archive in one message.
const exportChunk = 256 << 10

// toStream returns a writer that sends its input in messages.
func toStream[T any](send func(*T) error, message func(data []byte) *T) *bufio.Writer {
	return bufio.NewWriterSize(chunks(func(data []byte) error { return send(message(data)) }), exportChunk)
}

// chunks is called with pieces of at most exportChunk bytes.
type chunks func([]byte) error

func (f chunks) Write(p []byte) (int, error) {
	for chunk := range slices.Chunk(p, exportChunk) {
		if err := f(chunk); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// fromStream reads the data of messages.
type fromStream[T interface{ GetData() []byte }] struct {
	recv func() (T, error)
	rest []byte
}

func (r *fromStream[T]) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

var _ io.Reader = (*fromStream[interface{ GetData() []byte }])(nil)
