// Package logs reads sinks back: the whole, the tail, since a time, and on as
// they grow, across rotation and reopening.
//
// It knows the sinks' formats and nothing of containers. Start at Tail and
// Read; cri.go has the line format.
package logs

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// tailBytes bounds what Tail reads.
const tailBytes = 16 << 10

// Tail returns the last n lines of a sink's current file, oldest first, as the
// program wrote them; nil when there is none or when it is no regular file (a
// FIFO's bytes belong to its reader). Of a very long line it returns the end.
func Tail(sink core.Sink, n int) ([]string, error) {
	f, err := openRegular(current(sink))
	if f == nil || err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-tailBytes)
	b, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return nil, err
	}
	if from > 0 && sink.Format == core.FormatCRI {
		_, b, _ = bytes.Cut(b, []byte{'\n'}) // the line we fell into
	}
	return lastLines(texts(sink.Format, b), n), nil
}

// texts splits b into the lines that the program wrote.
func texts(format core.Format, b []byte) [][]byte {
	b = bytes.TrimSuffix(b, []byte{'\n'})
	if len(b) == 0 {
		return nil
	}
	lines := bytes.Split(b, []byte{'\n'})
	if format != core.FormatCRI {
		return lines
	}
	var whole [][]byte
	partial := map[string][]byte{}
	for _, l := range lines {
		e, err := ParseCRI(l)
		if err != nil {
			continue
		}
		text := append(partial[e.Stream], e.Text...)
		if e.Partial {
			partial[e.Stream] = text
			continue
		}
		delete(partial, e.Stream)
		whole = append(whole, text)
	}
	for _, s := range []string{"stdout", "stderr"} {
		if len(partial[s]) > 0 {
			whole = append(whole, partial[s])
		}
	}
	return whole
}

func lastLines(lines [][]byte, n int) []string {
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		if len(l) > maxTailLine {
			l = l[len(l)-maxTailLine:]
		}
		out[i] = string(bytes.ToValidUTF8(l, []byte("\uFFFD")))
	}
	return out
}

const maxTailLine = 1024

// openRegular opens path without ever blocking on a FIFO; nil when there is no
// regular file.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if os.IsNotExist(err) {
		return nil, nil //nolint:nilnil // no file, no error
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
