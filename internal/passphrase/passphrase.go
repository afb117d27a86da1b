// Package passphrase reads a passphrase from a file. It does not know what it is for. Start at
// Read.
package passphrase

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Max is the length of the longest, in bytes.
const Max = 4096

// Read reads the passphrase of something, the first line of a file that only its owner may
// read. FailedPrecondition when it cannot be used.
func Read(of, path string) ([]byte, error) {
	refuse := func(why string) ([]byte, error) {
		return nil, fmt.Errorf("the file with the passphrase of %s, %s, %s: %w", of, path, why, errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return refuse("cannot be read: " + errors.Unwrap(err).Error())
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return refuse("is no file")
	}
	if info.Mode().Perm()&0o077 != 0 {
		return refuse("may be read by others than its owner: give it mode 0600")
	}
	data, err := io.ReadAll(io.LimitReader(f, Max+1))
	if err != nil {
		return refuse("cannot be read: " + err.Error())
	}
	line, _, _ := bytes.Cut(data, []byte{'\n'})
	if line = bytes.TrimSuffix(line, []byte{'\r'}); len(line) == 0 || len(line) > Max {
		return refuse(fmt.Sprintf("does not begin with a passphrase of 1 to %d bytes", Max))
	}
	return line, nil
}
