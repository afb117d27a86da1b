package compiled

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// An entry names its module, the compiler's version and the processor, and ends with a sum over all of it. The sum
// tells damage, not malice: only root can write to the cache, and the child that compiles cannot.
//
//	magic, a line of JSON (header), the files' bytes, SHA-256 of all before
const (
	entryMagic = "longshore compiled wasm 2\n"
	maxHeader  = 64 << 10
	// MaxEntry is how many bytes an entry has at most.
	MaxEntry = 512 << 20
)

type header struct {
	Key   Key        `json:"key"`
	Files []FileSize `json:"files"`
}

// FileSize is a file that was made of a module: its path below the compiler's directory.
type FileSize struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// File is a file of an entry.
type File struct {
	Name string
	Data []byte
}

// fits reports whether the files, which must all be below the directory, have so many bytes.
func (h *header) fits(size int64) error {
	for _, f := range h.Files {
		if f.Size < 0 || f.Size > size || !filepath.IsLocal(f.Name) {
			return errors.New("its list of files is wrong")
		}
		size -= f.Size
	}
	if size != 0 {
		return errors.New("its list of files is wrong")
	}
	return nil
}

// seal writes an entry of the compiler's output: a line with its list of files, and their bytes, size in all.
func seal(w io.Writer, key Key, compiled io.Reader, size int64) error {
	in := bufio.NewReaderSize(compiled, maxHeader)
	line, err := in.ReadSlice('\n')
	h := header{Key: key}
	if err != nil || json.Unmarshal(line, &h.Files) != nil || len(h.Files) == 0 {
		return errors.New("the compiler wrote nothing")
	}
	if err := h.fits(size - int64(len(line))); err != nil {
		return err
	}
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if len(head) >= maxHeader {
		return errors.New("the compiler wrote too many files")
	}
	sum := sha256.New()
	all := io.MultiWriter(w, sum)
	if _, err := all.Write(append(append([]byte(entryMagic), head...), '\n')); err != nil {
		return err
	}
	if _, err := io.Copy(all, in); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

var (
	errNoEntry = errors.New("it is no compiled module of this version")
	errSum     = errors.New("it is damaged: its sum is another one")
)

// Open checks an entry and returns its files, which are parts of it. It returns none if the entry is not for key, or not as it was sealed.
func Open(entry []byte, key Key) ([]File, error) {
	if len(entry) < len(entryMagic)+sha256.Size || !bytes.HasPrefix(entry, []byte(entryMagic)) {
		return nil, errNoEntry
	}
	body, sum := entry[:len(entry)-sha256.Size], entry[len(entry)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, errSum
	}
	line, data, ok := bytes.Cut(body[len(entryMagic):], []byte("\n"))
	if !ok {
		return nil, errNoEntry
	}
	h, err := readHeader(line, key)
	if err == nil {
		err = h.fits(int64(len(data)))
	}
	if err != nil {
		return nil, err
	}
	var files []File
	for _, f := range h.Files {
		files = append(files, File{Name: f.Name, Data: data[:f.Size:f.Size]})
		data = data[f.Size:]
	}
	return files, nil
}

func readHeader(line []byte, key Key) (*header, error) {
	var h header
	if len(line) > maxHeader || json.Unmarshal(line, &h) != nil {
		return nil, errors.New("its header cannot be read")
	}
	if h.Key != key || key.Wazero == "" {
		return nil, fmt.Errorf("it is of another module, version or processor: %+v", h.Key)
	}
	return &h, nil
}

// check is Open for an entry in a file of this size, with little memory.
func check(r io.Reader, size int64, key Key) error {
	if size > MaxEntry || size < int64(len(entryMagic)+sha256.Size) {
		return errNoEntry
	}
	sum := sha256.New()
	in := bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, size-sha256.Size), sum), maxHeader)
	magic := make([]byte, len(entryMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != entryMagic {
		return errors.Join(errNoEntry, err)
	}
	line, err := in.ReadSlice('\n')
	if err != nil {
		return errors.Join(errNoEntry, err)
	}
	h, err := readHeader(line[:len(line)-1], key)
	if err == nil {
		err = h.fits(size - int64(len(magic)+len(line)+sha256.Size))
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	var last [sha256.Size]byte
	if _, err := io.ReadFull(r, last[:]); err != nil {
		return errors.Join(errNoEntry, err)
	}
	if !bytes.Equal(sum.Sum(nil), last[:]) {
		return errSum
	}
	return nil
}
