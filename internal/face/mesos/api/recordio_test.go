package api

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRecords(t *testing.T) {
	var b bytes.Buffer
	want := []string{"hello", "", "6\nhello!", strings.Repeat("x", 70000)}
	for _, w := range want {
		if err := WriteRecord(&b, []byte(w)); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(b.String(), "5\nhello0\n8\n6\nhello!70000\n") {
		t.Fatalf("the stream begins %.40q", b.String())
	}
	// Where the pieces of a stream end means nothing.
	r := NewRecordReader(iotest.OneByteReader(&b), 70000)
	for _, w := range want {
		if got, err := r.Next(); err != nil || string(got) != w {
			t.Errorf("%.20q, %v; want %.20q", got, err, w)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadStreams(t *testing.T) {
	for in, want := range map[string]string{
		"x\nhello":                         "Failed to decode length 'x'",
		"\nhello":                          "Failed to decode length ''",
		"-1\nhello":                        "Failed to decode length '-1'",
		" 5\nhello":                        "Failed to decode length ' 5'",
		"18446744073709551616\n":           "Failed to decode length '18446744073709551616'",
		"000000000000000000000005\nhello":  "Failed to decode length '000000000000000000000'",
		"18446744073709551615\nhello":      "the record is too long: 18446744073709551615 bytes, at most 100",
		"101\n" + strings.Repeat("x", 101): "the record is too long: 101 bytes, at most 100",
		"5\nhell":                          "EOF",
		"5":                                "EOF",
		"":                                 "EOF",
	} {
		if got, err := NewRecordReader(strings.NewReader(in), 100).Next(); err == nil || err.Error() != want {
			t.Errorf("%.30q: %q, %v; want %s", in, got, err, want)
		}
	}
}

// TestInterleaved: two writers into one stream at the same time break it; no record is longer than
// its length said.
func TestInterleaved(t *testing.T) {
	r := NewRecordReader(strings.NewReader("5\nhe7\nllo, you"), 100)
	if got, err := r.Next(); err != nil || string(got) != "he7\nl" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := r.Next(); err == nil || errors.Is(err, io.EOF) && got != nil {
		t.Errorf("%q, %v", got, err)
	}
	r = NewRecordReader(strings.NewReader("5\nhe7\nlloworld\n1\nx"), 100)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Next(); err == nil || err.Error() != "Failed to decode length 'loworld'" {
		t.Errorf("%q, %v", got, err)
	}
}

// FuzzRecords: for any bytes, records read and written again are a beginning of the input, but for
// zeros before a length.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("5\nhello0\n3\nabc"))
	f.Add([]byte("18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewRecordReader(bytes.NewReader(in), 1000)
		var all [][]byte
		for {
			rec, err := r.Next()
			if err != nil {
				break
			}
			all = append(all, rec)
		}
		var out bytes.Buffer
		for _, rec := range all {
			if err := WriteRecord(&out, rec); err != nil {
				t.Fatal(err)
			}
		}
		again := NewRecordReader(&out, 1000)
		for _, want := range all {
			if got, err := again.Next(); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
	})
}
