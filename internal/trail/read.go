package trail

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// maxFiles bounds the files of a trail.
const maxFiles = 1000

// Reader reads a trail as it is at one moment.
type Reader struct {
	files []*os.File // the oldest first
	sizes []int64
	head  chain
}

// Read opens the trail of a log for reading.
func (l *Log) Read() (*Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ReadDir(l.o.Dir)
}

// ReadDir opens the trail of a directory. A log that writes to it meanwhile may let Verify fail.
func ReadDir(dir string) (_ *Reader, err error) {
	r := &Reader{}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	found, err := filepath.Glob(filepath.Join(dir, current+"*"))
	if err != nil {
		return nil, err
	}
	for n := range maxFiles {
		if !slices.Contains(found, numbered(dir, n)) {
			continue
		}
		f, err := os.Open(numbered(dir, n))
		if err != nil {
			return nil, err
		}
		r.files = append(r.files, f)
	}
	slices.Reverse(r.files)
	for _, f := range r.files {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		r.sizes = append(r.sizes, info.Size())
	}
	r.head, err = readHead(filepath.Join(dir, headFile))
	if err != nil || len(r.files) == 0 {
		return nil, errors.Join(fmt.Errorf("%s has no audit trail", dir), err)
	}
	return r, nil
}

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Lines calls fn for each line, without its newline, until fn returns an error.
func (r *Reader) Lines(fn func(line []byte) error) error {
	for i, f := range r.files {
		in := bufio.NewReaderSize(io.NewSectionReader(f, 0, r.sizes[i]), maxLine)
		for {
			line, err := in.ReadSlice('\n')
			if len(line) > 0 {
				if err := fn(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // an overlong line is several ones that no Verifier accepts
				return err
			}
		}
	}
	return nil
}

// Head returns the number and the hash of the last line that a log has written here.
func (r *Reader) Head() (seq uint64, hash string) { return r.head.seq, r.head.hash }

// Verify checks all lines, and that none is missing at the end. It returns the number of the lines.
func (r *Reader) Verify() (lines int, err error) {
	var v Verifier
	err = r.Lines(func(line []byte) error {
		_, err := v.Line(line)
		if err == nil {
			lines++
		}
		return err
	})
	if err == nil {
		err = v.End(r.head.seq, r.head.hash)
	}
	return lines, err
}

// End checks that the trail ends with the line that audit.head names, or behind it.
func (v *Verifier) End(seq uint64, hash string) error {
	if v.at.seq < seq || v.at.seq == seq && v.at.hash != hash {
		return fmt.Errorf("%w: it ends with line %d, and line %d was written", ErrBroken, v.at.seq, seq)
	}
	return nil
}
