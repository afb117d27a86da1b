package wire_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/keeper/wire"
)

var update = flag.Bool("update", false, "write testdata anew")

// fill sets every field of a message to something that is not its zero value.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString(strings.Repeat("text ", *n%40+1))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n % 200))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(-*n))
	default:
		panic(v.Kind())
	}
}

func messages() []wire.Message {
	return []wire.Message{
		&wire.Hello{}, &wire.Fail{}, &wire.Ref{}, &wire.Command{}, &wire.Result{}, &wire.Sink{}, &wire.IO{}, &wire.Want{}, &wire.Level{},
		&wire.Launch{}, &wire.Launched{}, &wire.Opened{}, &wire.StreamsRequest{}, &wire.StreamEnd{}, &wire.SignalRequest{}, &wire.ResizeRequest{},
		&wire.Task{}, &wire.Namespaces{}, &wire.IDRange{}, &wire.Supervised{}, &wire.Processes{}, &wire.Exit{}, &wire.Status{}, &wire.Upgrade{}, &wire.Cancel{}, &wire.HeldName{}, &wire.HeldNames{},
		&wire.NestHello{}, &wire.Item{}, &wire.HandedItem{}, &wire.HandedItems{}, &wire.Drop{}, &wire.Child{}, &wire.Program{},
	}
}

func TestEveryFieldTravels(t *testing.T) {
	for _, m := range messages() {
		n := 0
		fill(reflect.ValueOf(m).Elem(), &n)
		b := wire.Marshal(nil, m)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(wire.Message)
		if !wire.Unmarshal(b, got) {
			t.Errorf("%T cannot be read", m)
			continue
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Errorf("%T: %s", m, d)
		}
		for i := range b {
			if wire.Unmarshal(b[:i], got) {
				t.Errorf("%T: %d of %d bytes are taken for the whole", m, i, len(b))
			}
		}
		if wire.Unmarshal(append(b, 0), got) {
			t.Errorf("%T: a byte too many is taken", m)
		}
	}
}

// TestGoldenVersion1 keeps the frames of version 1: a later keeper must still read these, and these
// must still be written for as long as Version is 1.
func TestGoldenVersion1(t *testing.T) {
	for name, frame := range map[string][]byte{
		"hello":  wire.Frame(wire.KindHello, 0, &wire.Hello{Magic: wire.Magic, Version: 1, Oldest: 1, Program: "agent"}),
		"answer": wire.Frame(wire.KindOK, 0, &wire.Hello{Magic: wire.Magic, Version: 1, Oldest: 1, Program: "1"}),
		"nest":   wire.Frame(wire.KindNestHello, 0, &wire.NestHello{Version: 1, Pid: 4321, Restarts: 2}),
		"exit": wire.Record(&wire.Exit{
			Ref: wire.Ref{Container: "c", Process: "p"}, Pid: 77, Code: 3, Nanos: 1234567890, OOMKills: []uint64{1, 0}, OOMLocal: []uint64{0, 0}, Peak: 4096,
		}),
	} {
		path := filepath.Join("testdata", "v1", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, frame, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame, want) {
			t.Errorf("%s is %x, was %x in version 1", name, frame, want)
		}
	}
}

func TestAgree(t *testing.T) {
	hello := func(oldest, version uint64) wire.Hello {
		return wire.Hello{Magic: wire.Magic, Version: version, Oldest: oldest}
	}
	for _, c := range []struct {
		a, b wire.Hello
		want uint64
	}{
		{hello(1, 1), hello(1, 1), 1},
		{hello(1, 2), hello(1, 1), 1},
		{hello(1, 2), hello(2, 3), 2},
		{hello(1, 1), hello(2, 3), 0},
		{hello(3, 4), hello(1, 2), 0},
		{hello(1, 1), wire.Hello{Magic: "else", Version: 1, Oldest: 1}, 0},
	} {
		if got := wire.Agree(c.a, c.b); got != c.want {
			t.Errorf("%v and %v agree on %d, want %d", c.a, c.b, got, c.want)
		}
	}
	if got := wire.Mismatch(hello(1, 1), hello(2, 3)); got != "this side speaks protocol version 1, the other versions 2 to 3" {
		t.Error(got)
	}
}

// TestLaterHelloIsUnderstood lets a version to come say more in its hello.
func TestLaterHelloIsUnderstood(t *testing.T) {
	b := wire.Marshal(nil, &wire.Hello{Magic: wire.Magic, Version: 9, Oldest: 8, Program: "later"})
	var h wire.Hello
	if !wire.Unmarshal(append(b, "and more"...), &h) || h.Version != 9 {
		t.Errorf("%+v", h)
	}
}

func TestKeysAreFileNames(t *testing.T) {
	seen := map[string]wire.Ref{}
	for _, r := range []wire.Ref{
		{Container: "c"},
		{Container: "c", Process: "main"},
		{Container: "c", Process: "exec-main"},
		{Container: "c/main"},
		{Container: ".."},
		{Container: "../.."},
		{Container: "."},
		{Container: "a", Process: "../../etc"},
		{Container: "a", Process: "%2E"},
		{Container: "a", Process: "."},
		{Container: "a", Process: strings.Repeat("x", 5000)},
		{Container: "a", Process: strings.Repeat("x", 5000) + "y"},
		{Container: "a+b"},
		{Container: "a", Process: "b\x00\n"},
	} {
		key := wire.Key(r)
		if other, ok := seen[key]; ok {
			t.Errorf("%v and %v are both %s", r, other, key)
		}
		seen[key] = r
		part := strings.Split(key, "/")
		if len(part) != 2 || len(wire.RecordFile(key)) > 255-len(".new")*8 && len(part[1]) > 255 {
			t.Errorf("key %s", key)
		}
		for _, p := range part {
			if p == "" || p == "." || p == ".." || len(p) > 255 {
				t.Errorf("part %q of %v", p, r)
			}
		}
		if strings.ContainsAny(wire.RecordFile(key), "/\x00") {
			t.Errorf("file %q", wire.RecordFile(key))
		}
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(wire.Frame(wire.KindHello, 1, &wire.Hello{Magic: wire.Magic, Version: 1, Oldest: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, ok := wire.ParseHeader(b)
		if ok && !bytes.Equal(append(h.Append(nil), body...), b) {
			t.Errorf("%x is read as %+v", b, h)
		}
	})
}

// FuzzUnmarshal gives any bytes to every decoder. An accepted message must be written and read
// again as the same.
func FuzzUnmarshal(f *testing.F) {
	for i, m := range messages() {
		n := 0
		fill(reflect.ValueOf(m).Elem(), &n)
		f.Add(uint8(i), wire.Marshal(nil, m))
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		all := messages()
		m := all[int(which)%len(all)]
		if !wire.Unmarshal(b, m) {
			return
		}
		again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(wire.Message)
		if !wire.Unmarshal(wire.Marshal(nil, m), again) {
			t.Fatalf("%+v cannot be read again", m)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Error(d)
		}
	})
}

// TestADamagedRecordIsNotRead: no byte of an exit record can change, or be missing, unnoticed; one of
// an earlier release is read.
func TestADamagedRecordIsNotRead(t *testing.T) {
	exit := &wire.Exit{Ref: wire.Ref{Container: "c", Process: "p"}, Pid: 77, Code: 3, Nanos: 1234567890, OOMKills: []uint64{1, 0}, Peak: 4096}
	var got wire.Exit
	whole := wire.CheckedRecord(exit)
	for _, b := range [][]byte{whole, wire.Record(exit)} {
		if !wire.ParseChecked(b, &got) || got.Code != 3 || got.Ref != exit.Ref {
			t.Errorf("%x: %+v", b, got)
		}
	}
	for i := range whole {
		if wire.ParseChecked(whole[:i], &got) {
			t.Errorf("cut after %d bytes, it is read", i)
		}
		for bit := range 8 {
			b := bytes.Clone(whole)
			b[i] ^= 1 << bit
			if wire.ParseChecked(b, &got) {
				t.Errorf("with bit %d of byte %d flipped, it is read: %+v", bit, i, got)
			}
		}
	}
	if wire.ParseChecked(make([]byte, len(whole)), &got) {
		t.Errorf("zeros are read")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(wire.Record(&wire.Exit{}))
	f.Add(wire.CheckedRecord(&wire.Exit{}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var e wire.Exit
		wire.ParseRecord(b, &e)
		wire.ParseChecked(b, &e)
	})
}

func FuzzKey(f *testing.F) {
	f.Add("c", "p")
	f.Fuzz(func(t *testing.T, c, p string) {
		key := wire.Key(wire.Ref{Container: c, Process: p})
		if strings.Count(key, "/") != 1 || strings.Contains(key, "..") && strings.HasPrefix(key, "..") || len(key) > 500 {
			t.Errorf("key %q", key)
		}
	})
}
