package msgpack

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestEveryKindIsRead(t *testing.T) {
	for in, want := range map[string]any{
		"\x00": int64(0), "\x7f": int64(127), "\xff": int64(-1), "\xe0": int64(-32),
		"\xc0": nil, "\xc2": false, "\xc3": true,
		"\xcc\xff": int64(255), "\xcd\xff\xff": int64(65535), "\xce\xff\xff\xff\xff": int64(math.MaxUint32),
		"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff": int64(math.MaxInt64), "\xcf\xff\xff\xff\xff\xff\xff\xff\xff": uint64(math.MaxUint64),
		"\xd0\x80": int64(-128), "\xd1\x80\x00": int64(-32768), "\xd2\x80\x00\x00\x00": int64(math.MinInt32),
		"\xd3\x80\x00\x00\x00\x00\x00\x00\x00": int64(math.MinInt64),
		"\xca\x3f\xc0\x00\x00":                 1.5, "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00": 1.5,
		"\xa0": "", "\xa2hi": "hi", "\xd9\x02hi": "hi", "\xda\x00\x02hi": "hi", "\xdb\x00\x00\x00\x02hi": "hi",
		"\xc4\x02hi": "hi", "\xc5\x00\x02hi": "hi", "\xc6\x00\x00\x00\x02hi": "hi",
		"\x90": []any{}, "\x92\x01\xa1a": []any{int64(1), "a"}, "\xdc\x00\x01\xc0": []any{nil}, "\xdd\x00\x00\x00\x01\xc0": []any{nil},
		"\x80": map[string]any{}, "\x81\xa1a\x91\xc3": map[string]any{"a": []any{true}},
		"\xde\x00\x01\xa1a\x01": map[string]any{"a": int64(1)}, "\xdf\x00\x00\x00\x01\xa1a\x01": map[string]any{"a": int64(1)},
	} {
		got, err := Decode([]byte(in))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", in, err, diff)
		}
	}
}

func TestWhatIsNoneIsRefused(t *testing.T) {
	for in, want := range map[string]string{
		"": "ends early", "\x01\x02": "after the value", "\xa5hi": "ends early", "\x81\x01\x02": "no string", "\xc1": "kind 0xc1", "\xd4\x01\x01": "kind 0xd4",
		"\x82\xa1a\x01\xa1a\x02": "twice", "\xdd\xff\xff\xff\xff": "ends early", "\xdf\xff\xff\xff\xff": "ends early", "\xdb\xff\xff\xff\xff": "ends early",
		strings.Repeat("\x91", 1<<20) + "\xc0": "deep",
	} {
		if _, err := Decode([]byte(in)); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want %s", in, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x82\xa5image\xa7busybox\xa4args\x92\xa2-c\xa1x"))
	f.Add(bytes.Repeat([]byte{0x91}, 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Decode(data)
		if err != nil && (v != nil || !errdefs.IsInvalidArgument(err)) {
			t.Errorf("got %v with %v", v, err)
		}
	})
}
