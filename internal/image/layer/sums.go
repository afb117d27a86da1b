package layer

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A sums file has a line for each file of a layer, in the order of a walk:
//
//	MODE UID GID SIZE SUM "PATH" "TARGET"
//
// MODE is st_mode, SIZE and SUM (CRC32C) are those of regular files and 0 for others, PATH is
// relative to the layer, TARGET is that of a symlink. The last line is "end" and the CRC32C of
// all that is before it.
const sumsEnd = "end "

// maxSumLine is longer than any line: a path has at most 4,096 bytes, and quoting makes up to four
// of each.
const maxSumLine = 64 << 10

// WriteSums writes the sums of the layer in dir to the file at path, so that Verify can find damage
// later.
func WriteSums(dir, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return classify(err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = classify(errors.Join(err, os.Remove(path)))
		}
	}()
	all := crc32.New(castagnoli())
	w := bufio.NewWriterSize(io.MultiWriter(f, all), 64<<10)
	err = walkSums(dir, func(line string) error {
		_, err := w.WriteString(line + "\n")
		return err
	})
	if err = errors.Join(err, w.Flush()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s%08x\n", sumsEnd, all.Sum32())
	return err
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // the package caches it

// walkSums calls fn with the line of each file.
func walkSums(dir string, fn func(line string) error) error {
	buf := make([]byte, 256<<10)
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line, err := sumLine(dir, path, e, buf)
		if err != nil {
			return err
		}
		return fn(line)
	})
}

func sumLine(dir, path string, e fs.DirEntry, buf []byte) (string, error) {
	fi, err := e.Info()
	if err != nil {
		return "", err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s has no attributes: %w", path, errdefs.ErrInternal)
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return "", err
	}
	var size int64
	var sum uint32
	target := ""
	switch {
	case fi.Mode().IsRegular():
		size = st.Size
		if sum, err = sumFile(path, buf); err != nil {
			return "", err
		}
	case fi.Mode()&fs.ModeSymlink != 0:
		if target, err = os.Readlink(path); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%o %d %d %d %08x %s %s", st.Mode, st.Uid, st.Gid, size, sum, strconv.Quote(rel), strconv.Quote(target)), nil
}

func sumFile(path string, buf []byte) (uint32, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := crc32.New(castagnoli())
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, buf); err != nil {
		return 0, fmt.Errorf("%w: %w", errdefs.ErrDataLoss, err)
	}
	return h.Sum32(), nil
}

// maxFaults is how many damaged files Verify names.
const maxFaults = 20

// Verify compares the layer in dir with its sums in the file at path, and returns the differences:
// at most a few of the files. NotFound for a layer without sums or with damaged ones.
func Verify(dir, path string) (faults []string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("it has no sums: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if err := soundSums(f); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 4096), maxSumLine)
	next := func() string {
		if sc.Scan() && !strings.HasPrefix(sc.Text(), sumsEnd) {
			return sc.Text()
		}
		return ""
	}
	differs := errors.New("it differs")
	err = walkSums(dir, func(line string) error {
		want := next()
		if line == want {
			return nil
		}
		name, other := sumPath(line), sumPath(want)
		if name != other {
			// Both lists are in the order of the walk, so from here on they cannot be compared.
			faults = append(faults, fmt.Sprintf("there is %s where %s was unpacked", orNothing(name), orNothing(other)))
			return differs
		}
		faults = append(faults, name+" differs from the unpacked file")
		if len(faults) == maxFaults {
			return differs
		}
		return nil
	})
	switch {
	case errors.Is(err, differs):
		return faults, nil
	case err != nil:
		return append(faults, err.Error()), nil // an unreadable file is damaged
	}
	if want := next(); want != "" {
		faults = append(faults, sumPath(want)+" is missing")
	}
	return faults, nil
}

func orNothing(name string) string {
	if name == "" {
		return "nothing"
	}
	return name
}

// sumPath returns the quoted path in a line.
func sumPath(line string) string {
	at := strings.IndexByte(line, '"')
	if at < 0 {
		return ""
	}
	name, err := strconv.QuotedPrefix(line[at:])
	if err != nil {
		return ""
	}
	return name
}

// soundSums checks the sum of a sums file itself.
func soundSums(f *os.File) error {
	all := crc32.New(castagnoli())
	br := bufio.NewReaderSize(f, maxSumLine)
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("its sums are damaged: %w", errdefs.ErrNotFound)
		}
		if rest, ok := strings.CutPrefix(string(line), sumsEnd); ok {
			if strings.TrimSpace(rest) != fmt.Sprintf("%08x", all.Sum32()) {
				return fmt.Errorf("its sums are damaged: %w", errdefs.ErrNotFound)
			}
			return nil
		}
		_, _ = all.Write(line)
	}
}
