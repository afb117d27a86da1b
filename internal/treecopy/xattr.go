package treecopy

import (
	"archive/tar"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The extended attributes that a tar has: a program's capabilities and those that users set. The others belong to the node, such
// as labels of its security modules.
const (
	capability     = "security.capability"
	userAttributes = "user."
	attributeKey   = "SCHILY.xattr." // of the records in a tar
)

// attributes adds the extended attributes of an open file. Capabilities are left out as setuid is: with other ids they have
// another meaning.
func (tw *tarWriter) attributes(h *tar.Header, f *os.File) error {
	names, err := grown(func(to []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), to) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "list the extended attributes of", Path: h.Name, Err: err}
	}
	left := maxAttributes
	for name := range strings.SplitSeq(string(names), "\x00") {
		if (name != capability || tw.ids.Mapped()) && !strings.HasPrefix(name, userAttributes) || strings.Contains(name, "=") {
			continue // a record's key cannot have an equals sign
		}
		value, err := grown(func(to []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, to) })
		if errors.Is(err, unix.ENODATA) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return &os.PathError{Op: "read the extended attribute " + name + " of", Path: h.Name, Err: err}
		}
		if left -= len(name) + len(value); left < 0 {
			return nil // docs/limits.md: a program must not make its export fail, or fill the memory
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[attributeKey+name] = string(value)
	}
	return nil
}

// maxAttributes bounds the attributes of a file in a tar, in bytes: readers refuse larger headers.
const maxAttributes = 512 << 10

// maxAttribute is the kernel's bound of a value and of a list of names, in bytes.
const maxAttribute = 1 << 16

// grown returns the bytes that read writes. Most values are small: it tries the largest size only if a small one does not suffice.
func grown(read func(to []byte) (int, error)) ([]byte, error) {
	to := make([]byte, 256)
	n, err := read(to)
	if errors.Is(err, unix.ERANGE) {
		to = make([]byte, maxAttribute)
		n, err = read(to)
	}
	if err != nil {
		return nil, err
	}
	return to[:n], nil
}
