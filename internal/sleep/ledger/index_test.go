package ledger

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/longshore/longshore/internal/sleep/uffd"
)

// TestPagesComeBack writes pages and an index, and reads them.
func TestPagesComeBack(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	w, err := NewWriter(f, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	want := map[uint64][]byte{}
	x := &Index{Spaces: []Space{{Pid: 7, Areas: []uffd.Range{{Addr: 1 << 20, Len: 1 << 20}, {Addr: 1 << 30, Len: 1 << 20}}}}}
	for _, addr := range []uint64{1 << 20, 1<<20 + 10*PageSize, 1 << 30} {
		b := make([]byte, (1+r.IntN(9))*PageSize)
		for i := range b {
			b[i] = byte(r.IntN(4))
		}
		k, err := w.Add(addr, b)
		if err != nil {
			t.Fatal(err)
		}
		x.Spaces[0].Blocks, want[addr] = append(x.Spaces[0].Blocks, k), b
	}
	var out bytes.Buffer
	if err := x.Encode(&out); err != nil {
		t.Fatal(err)
	}
	got, err := Decode(out.Bytes())
	if err != nil || !reflect.DeepEqual(got, x) {
		t.Fatalf("decoded %+v, %v, want %+v", got, err, x)
	}
	reader, err := NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range got.Spaces[0].Blocks {
		if b, err := reader.Read(k, nil); err != nil || !bytes.Equal(b, want[k.Addr]) {
			t.Errorf("the block at %#x: %d bytes, %v", k.Addr, len(b), err)
		}
	}
	// A damaged block is an error, not another content.
	if _, err := f.WriteAt([]byte{1, 2, 3, 4}, got.Spaces[0].Blocks[1].Offset+8); err != nil {
		t.Fatal(err)
	}
	if b, err := reader.Read(got.Spaces[0].Blocks[1], nil); err == nil {
		t.Errorf("a damaged block has %d bytes", len(b))
	}
	if _, err := w.Add(1<<30+64*PageSize, make([]byte, PageSize)); err != nil {
		t.Error(err)
	}
	for range 300 {
		b := make([]byte, PageSize)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if _, err = w.Add(0, b); err != nil {
			break
		}
	}
	if err != ErrFull { //nolint:errorlint // it is returned as it is
		t.Errorf("beyond the limit: %v", err)
	}
}

// TestTheLedgerRemembers opens a ledger again.
func TestTheLedgerRemembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := Open(f); err != ErrUnborn { //nolint:errorlint // it is returned as it is
		t.Errorf("an empty file: %v", err)
	}
	l, err := Create(f)
	if err != nil {
		t.Fatal(err)
	}
	one, err := l.Bitmap(10)
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Bitmap(100_000)
	if err != nil {
		t.Fatal(err)
	}
	one.Set(9)
	two.Set(99_999)
	moves := []Move{{Space: 0, From: PageSize, To: 9 * PageSize, Length: PageSize}, {Space: 1, Fork: 12}}
	for _, m := range []Move{moves[0], moves[0], moves[1]} { // the repeated one is the same
		if err := l.Moved(m); err != nil {
			t.Fatal(err)
		}
	}
	l.Reach(Waking)
	l.Reach(Out) // not back
	*l.Inbox(1) = uffd.Message{Event: uffd.Remove, Args: [3]uint64{PageSize, 2 * PageSize}}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(f); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if space, m, ok := l.Unhandled(); !ok || space != 1 || m.Event != uffd.Remove || m.Args[1] != 2*PageSize {
		t.Errorf("unhandled: %d, %+v, %v", space, m, ok)
	}
	if l.Handled(); l.Phase() != Waking || !reflect.DeepEqual(l.Moves(), moves) {
		t.Errorf("phase %d, moves %+v", l.Phase(), l.Moves())
	}
	if _, _, ok := l.Unhandled(); ok {
		t.Error("a handled message is still there")
	}
	if one, err = l.Bitmap(10); err != nil || !one.Has(9) || one.Has(8) {
		t.Errorf("the first bitmap: %v", err)
	}
	if two, err = l.Bitmap(100_000); err != nil || !two.Has(99_999) || two.Has(0) {
		t.Errorf("the second bitmap: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	var out bytes.Buffer
	x := &Index{Spaces: []Space{{Pid: 1, Areas: []uffd.Range{{Addr: PageSize, Len: 8 * PageSize}}, Blocks: []Block{{Addr: PageSize, Pages: 2, Size: 9}}}}}
	if err := x.Encode(&out); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := Decode(data)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := x.Encode(&out); err != nil {
			t.Fatal(err)
		}
		if again, err := Decode(out.Bytes()); err != nil || !reflect.DeepEqual(again, x) {
			t.Errorf("encoded again: %+v, %v, want %+v", again, err, x)
		}
	})
}
