package image

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/worker"
)

const (
	binfmtDir   = "/proc/sys/fs/binfmt_misc"
	maxHandlers = 256
	maxHandler  = 8 << 10 // bytes of its file
)

// machine is how the programs of an architecture begin: class, byte order and number.
type machine struct {
	class  byte // 1: 32 bits, 2: 64
	order  binary.ByteOrder
	number uint16
}

// machines are the architectures that images name, by Go's names for them.
func machines() map[string]machine {
	le, be := binary.LittleEndian, binary.BigEndian
	return map[string]machine{
		"386": {1, le, 3}, "amd64": {2, le, 62}, "arm": {1, le, 40}, "arm64": {2, le, 183}, "loong64": {2, le, 258}, "mips64le": {2, le, 8},
		"mips64": {2, be, 8}, "ppc64": {2, be, 21}, "ppc64le": {2, le, 21}, "riscv64": {2, le, 243}, "s390x": {2, be, 22},
	}
}

// header returns the first bytes of a program: ELF's identification, its type, and its machine.
func (m machine) header(kind uint16) []byte {
	order := byte(1)
	if m.order.Uint16([]byte{0, 1}) == 1 {
		order = 2
	}
	b := make([]byte, 20)
	copy(b, "\x7fELF")
	b[4], b[5], b[6] = m.class, order, 1
	m.order.PutUint16(b[16:], kind)
	m.order.PutUint16(b[18:], m.number)
	return b
}

// emulated returns the architectures with a handler for their programs in binfmt_misc, mounted at
// dir. Without the mount there is none.
func emulated(dir string) (archs []string) {
	if b, err := readSome(filepath.Join(dir, "status")); err != nil || strings.TrimSpace(string(b)) != "enabled" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	names, err := d.Readdirnames(maxHandlers)
	_ = d.Close()
	if err != nil {
		return nil
	}
	for _, name := range names {
		b, err := readSome(filepath.Join(dir, name))
		if name == "status" || name == "register" || err != nil {
			continue
		}
		handles := handler(b)
		for arch, m := range machines() {
			const executable, shared = 2, 3
			if !slices.Contains(archs, arch) && (handles(m.header(executable)) || handles(m.header(shared))) {
				archs = append(archs, arch)
			}
		}
	}
	slices.Sort(archs)
	return archs
}

func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxHandler))
}

// handler reads one handler's file and returns whether it handles a program that begins so.
func handler(file []byte) func(head []byte) bool {
	var magic, mask []byte
	on, at := false, 0
	lines := bufio.NewScanner(bytes.NewReader(file))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch key {
		case "enabled":
			on = true
		case "offset":
			at, err = strconv.Atoi(value)
		case "magic":
			magic, err = hex.DecodeString(value)
		case "mask":
			mask, err = hex.DecodeString(value)
		}
		if err != nil {
			return func([]byte) bool { return false }
		}
	}
	// It may compare bytes behind the head of a program, which are not read here, so they count as
	// equal.
	return func(head []byte) bool {
		if !on || len(magic) == 0 || at != 0 || !bytes.HasPrefix(magic, []byte("\x7fELF")) || len(magic) < len(head) {
			return false
		}
		for i, c := range head {
			if want := magic[i]; i < len(mask) && (c^want)&mask[i] != 0 || i >= len(mask) && c != want {
				return false
			}
		}
		return true
	}
}

// checkPlatform refuses an image with programs that this node cannot execute.
func (s *Store) checkPlatform(p ocispec.Platform) error {
	if worker.Runs(p, nil) || worker.Runs(p, emulated(s.binfmt)) {
		return nil
	}
	return fmt.Errorf("%s: pull the image for this platform, or install a handler (qemu-user-static and binfmt-support): %w", worker.ForeignPlatform(p), errdefs.ErrFailedPrecondition)
}
