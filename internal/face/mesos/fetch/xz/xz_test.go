package xz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"
)

// content is so many bytes, of which some can be packed.
func content(size int) []byte {
	b := make([]byte, size)
	from := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < size; {
		word := strings.Repeat(string(rune('a'+from.IntN(26))), 1+from.IntN(20))
		i += copy(b[i:], word)
	}
	return b
}

func pack(t testing.TB, c xz.WriterConfig, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := c.NewWriter(&b)
	if err == nil {
		_, err = w.Write(raw)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(packed []byte) ([]byte, error) {
	r, err := NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestUnpack(t *testing.T) {
	raw := content(300_000)
	for name, c := range map[string]xz.WriterConfig{
		"CRC64": {}, "CRC32": {CheckSum: xz.CRC32}, "SHA-256": {CheckSum: xz.SHA256}, "no check": {NoCheckSum: true}, "blocks": {BlockSize: 1000}, "a large one": {DictCap: MaxDictionary},
	} {
		if c.DictCap == 0 {
			c.DictCap = lzma.MinDictCap
		}
		for _, size := range []int{0, 1, 1000, 1001, len(raw)} {
			got, err := unpack(pack(t, c, raw[:size]))
			if err != nil || !bytes.Equal(got, raw[:size]) {
				t.Errorf("%s, %d bytes: %d, %v", name, size, len(got), err)
			}
		}
	}
	two := append(append(pack(t, xz.WriterConfig{}, raw[:7]), 0, 0, 0, 0), pack(t, xz.WriterConfig{CheckSum: xz.CRC32}, raw[7:20])...)
	if got, err := unpack(append(two, 0, 0, 0, 0, 0, 0, 0, 0)); err != nil || !bytes.Equal(got, raw[:20]) {
		t.Errorf("of two streams: %q, %v", got, err)
	}
}

// TestUnpackXZ: what xz itself has packed, which says sizes in the heads of blocks.
func TestUnpackXZ(t *testing.T) {
	program, err := exec.LookPath("xz")
	if err != nil {
		t.Skip("no xz here")
	}
	raw := content(300_000)
	for _, args := range []string{"-0", "-9e", "-T2 --block-size=65536", "--check=sha256", "--check=none"} {
		cmd := exec.CommandContext(t.Context(), program, append(strings.Fields(args), "-c")...)
		cmd.Stdin = bytes.NewReader(raw)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := unpack(packed); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%s: %d bytes, %v", args, len(got), err)
		}
	}
}

// TestNotWhole: whatever is missing or was changed is found out.
func TestNotWhole(t *testing.T) {
	raw := content(3000)
	packed := pack(t, xz.WriterConfig{BlockSize: 1000, DictCap: lzma.MinDictCap}, raw)
	for n := range packed {
		if _, err := unpack(packed[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the first %d bytes of %d: %v", n, len(packed), err)
		}
		changed := bytes.Clone(packed)
		changed[n] ^= 0x10
		if got, err := unpack(changed); err == nil && !bytes.Equal(got, raw) {
			t.Errorf("byte %d is another: no error, and another content", n)
		}
	}
	if _, err := unpack([]byte("no xz at all")); !errors.Is(err, errFormat) {
		t.Errorf("%v", err)
	}
	if _, err := unpack(append(packed, 0, 0)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("with two zeroes more: %v", err)
	}
	if _, err := unpack(append(packed, "more than that"...)); !errors.Is(err, errFormat) {
		t.Errorf("with something behind it: %v", err)
	}
}

// TestWhatIsNotUnpacked: a file that takes too much memory, and other filters.
func TestWhatIsNotUnpacked(t *testing.T) {
	packed := pack(t, xz.WriterConfig{}, []byte("content"))
	const head = 12 // of the stream
	size := (int(packed[head]) + 1) * 4
	for name, c := range map[string]struct {
		at   int
		to   byte
		want string
	}{
		"a dictionary of 4 GiB":   {4, 40, "takes more than 67108864 bytes of memory"},
		"a dictionary of 96 MiB":  {4, 29, "takes more than 67108864 bytes of memory"},
		"a dictionary of no size": {4, 41, "not in the format"},
		"another filter":          {2, 4, "filters of the xz file other than LZMA2"},
		"two filters":             {1, 1, "filters of the xz file other than LZMA2"},
		"flags of no meaning":     {1, 4, "not in the format"},
	} {
		changed := bytes.Clone(packed)
		changed[head+c.at] = c.to
		binary.LittleEndian.PutUint32(changed[head+size-4:], crc32.ChecksumIEEE(changed[head:head+size-4]))
		if _, err := unpack(changed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := unpack(bytes.Repeat(large(t), freeDictionaries/MaxDictionary)); err != nil {
		t.Errorf("some small streams with large dictionaries: %v", err)
	}
	if _, err := unpack(bytes.Repeat(large(t), freeDictionaries/MaxDictionary+1)); err == nil || !strings.Contains(err.Error(), "too small for the memory") {
		t.Errorf("many small streams with large dictionaries: %v", err)
	}
	changed := bytes.Clone(packed)
	changed[7] = 2
	if _, err := unpack(changed); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another check: %v", err)
	}
}

// large is a small stream that says that it wants the largest dictionary.
func large(t *testing.T) []byte {
	t.Helper()
	packed := pack(t, xz.WriterConfig{DictCap: lzma.MinDictCap}, []byte("x"))
	const head = 12
	size := (int(packed[head]) + 1) * 4
	packed[head+4] = 28
	binary.LittleEndian.PutUint32(packed[head+size-4:], crc32.ChecksumIEEE(packed[head:head+size-4]))
	return packed
}

// FuzzReader: what is no error here is none to the library either, and the same.
func FuzzReader(f *testing.F) {
	for _, c := range []xz.WriterConfig{{}, {CheckSum: xz.SHA256, BlockSize: 10}, {NoCheckSum: true}} {
		c.DictCap = lzma.MinDictCap
		f.Add(pack(f, c, content(100)))
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		if len(packed) > 1<<12 {
			return
		}
		r, err := NewReader(bytes.NewReader(packed))
		if err != nil {
			return
		}
		const limit = 1 << 20
		got, err := io.ReadAll(io.LimitReader(r, limit))
		if err != nil || len(got) == limit {
			return
		}
		theirs, err := xz.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		if want, err := io.ReadAll(theirs); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q, to the library %q, %v", got, want, err)
		}
	})
}
