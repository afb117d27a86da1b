// Package logs reads sinks: all of the output, its last lines, from a time on, or new output as
// it is written, across rotation and reopening.
//
// It knows the formats of sinks and nothing about containers. Start at Tail and Read; cri.go has
// the line format.
package logs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
)

// tailBytes is how much Tail reads at most.
const tailBytes = 16 << 10

// Tail returns the last n lines of a sink's current file, oldest first, as the program wrote
// them. It returns nil when there is no such file or when it is not a regular one (the bytes in a
// FIFO belong to its reader). Of a very long line it returns the end.
func Tail(sink core.Sink, n int) ([]string, error) {
	f, err := openRegular(sink, current(sink))
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
	if from > 0 && sink.Format.Records() {
		_, b, _ = bytes.Cut(b, []byte{'\n'}) // the rest of a line with an unread beginning
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
	if !format.Records() {
		return lines
	}
	var whole [][]byte
	partial := map[string][]byte{}
	for _, l := range lines {
		e, err := parse(format, l)
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

// Readable reports whether a sink is a regular file, which can be read back.
func Readable(sink core.Sink) bool {
	f, err := openRegular(sink, current(sink))
	if f != nil {
		_ = f.Close()
	}
	return f != nil && err == nil
}

// openDir opens the directory of a sink's files as the keeper does: it follows no link below the
// sink's trusted directory.
func openDir(sink core.Sink) (*os.File, error) {
	dir := filepath.Dir(sink.Path)
	if sink.Below == "" {
		return os.Open(dir)
	}
	rel, ok := beneath.Rel(sink.Below, dir)
	if !ok {
		return nil, &os.PathError{Op: "open", Path: dir, Err: unix.EXDEV}
	}
	return beneath.Open(sink.Below, rel, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// openRegular opens path, one of the sink's files, without blocking on a FIFO and without
// following a link; nil when there is no regular file.
func openRegular(sink core.Sink, path string) (*os.File, error) {
	dir, err := openDir(sink)
	if err == nil {
		defer func() { _ = dir.Close() }()
	}
	var f *os.File
	if err == nil {
		f, err = beneath.Child(dir, filepath.Base(path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
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
