package archive_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/archive"
)

type record struct{ key, value string }

func made(t testing.TB, records ...record) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := archive.NewWriter(&b, archive.Info{Made: time.Unix(1000, 0).UTC(), Revision: 7})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := w.Add(r.key, []byte(r.value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(data []byte) (records []record, info archive.Info, err error) {
	info, err = archive.Read(bytes.NewReader(data), func(key string, value []byte) error {
		records = append(records, record{key, string(value)})
		return nil
	})
	return records, info, err
}

// TestABackup: the written records are read, and one that lacks a byte, has one more or another one
// is refused.
func TestABackup(t *testing.T) {
	t.Parallel()
	data := made(t, record{"a", "1"}, record{"b", ""}, record{"c", strings.Repeat("x", 1000)})
	records, info, err := read(data)
	if err != nil || info.Revision != 7 || info.Made.Unix() != 1000 || len(records) != 3 || records[0] != (record{"a", "1"}) || records[1] != (record{"b", ""}) || len(records[2].value) != 1000 {
		t.Fatalf("%d records, %+v, %v", len(records), info, err)
	}
	for n := range data {
		if _, _, err := read(data[:n]); !errdefs.IsDataLoss(err) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
		other := bytes.Clone(data)
		other[n] ^= 1
		if _, _, err := read(other); !errdefs.IsDataLoss(err) {
			t.Errorf("another byte at %d: %v", n, err)
		}
	}
	if _, _, err := read(append(bytes.Clone(data), 0)); !errdefs.IsDataLoss(err) {
		t.Errorf("one more byte: %v", err)
	}
	if _, _, err := read(made(t, record{"b", "1"}, record{"a", "2"})); !errdefs.IsDataLoss(err) {
		t.Errorf("records that are not in order: %v", err)
	}
	if _, _, err := read(made(t, record{"a", "1"}, record{"a", "2"})); !errdefs.IsDataLoss(err) {
		t.Errorf("a record twice: %v", err)
	}
}

// FuzzRead: any bytes are refused, or are a backup that reads the same when it is written again.
func FuzzRead(f *testing.F) {
	f.Add(made(f, record{"a", "1"}, record{"b", "2"}))
	f.Add(made(f))
	f.Add([]byte("longshore-hub backup 1\n{}\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, _, err := read(data)
		if err != nil {
			if !errdefs.IsDataLoss(err) {
				t.Error(err)
			}
			return
		}
		if again, _, err := read(made(t, records...)); err != nil || !slices.Equal(again, records) {
			t.Errorf("%q, %q, %v", records, again, err)
		}
	})
}
