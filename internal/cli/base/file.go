package base

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// ArchiveChunk is how much of an archive is sent in one message, in bytes.
const ArchiveChunk = 256 << 10

// WriteTo calls fn to write the file, which appears only when it is complete, or standard output
// when path is "" or "-".
func (a *App) WriteTo(path string, fn func(io.Writer) error) error {
	if path == "" || path == "-" {
		w := bufio.NewWriterSize(a.Stdout, ArchiveChunk)
		if err := fn(w); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
	tmp := path + ".part"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = fn(f)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("write %s: %w", path, cerr)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}
