package mesosgo

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/encoding"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// theirs is a message of mesos-go.
type theirs interface {
	encoding.Marshaler
	encoding.Unmarshaler
}

// roots make the messages of the wire: ours, and mesos-go's of the same kind.
var roots = map[string]func() (proto.Message, theirs){
	"call":     func() (proto.Message, theirs) { return &mesosagent.Call{}, &agent.Call{} },
	"response": func() (proto.Message, theirs) { return &mesosagent.Response{}, &agent.Response{} },
	"io":       func() (proto.Message, theirs) { return &mesosagent.ProcessIO{}, &agent.ProcessIO{} },
}

// filler sets every field, and lists by two elements, each value another.
type filler struct {
	n      int
	fields map[protoreflect.FullName]bool
}

// deepest is how far a name goes down into itself.
const deepest = 3

func (f *filler) fill(m protoreflect.Message, above []protoreflect.FullName) {
	name := m.Descriptor().FullName()
	again := 0
	for _, a := range above {
		if a == name {
			again++
		}
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		d := fields.Get(i)
		f.fields[d.FullName()] = true
		switch {
		case d.Message() != nil && again == deepest && d.Message().FullName() == name:
		case d.IsList():
			list := m.Mutable(d).List()
			for range 2 {
				if d.Message() != nil {
					f.fill(list.AppendMutable().Message(), append(above, name))
				} else {
					list.Append(f.scalar(d))
				}
			}
		case d.Message() != nil:
			f.fill(m.Mutable(d).Message(), append(above, name))
		default:
			m.Set(d, f.scalar(d))
		}
	}
}

func (f *filler) scalar(d protoreflect.FieldDescriptor) protoreflect.Value {
	f.n++
	switch d.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("%s <%d> \"ü\\\u2028\" \x01", d.Name(), f.n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 0xff, byte(f.n)})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.n%2 == 0)
	case protoreflect.EnumKind:
		all := d.Enum().Values()
		return protoreflect.ValueOfEnum(all.Get(f.n % all.Len()).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MinInt32 + int32(f.n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(math.MinInt64 + int64(f.n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(math.MaxUint32 - uint32(f.n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(math.MaxUint64 - uint64(f.n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(f.n) + []float64{0, 0.1, 1e300, -1e-7}[f.n%4])
	}
	panic(d.Kind().String())
}

// TestEveryFieldGoesBothWays: mesos-go reads our message, and we read the one that it then writes,
// in both forms, and nothing is lost.
func TestEveryFieldGoesBothWays(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	for name, root := range roots {
		for round := range 4 { // so that each enum and each truth has another value
			want, _ := root()
			f := filler{n: round * 31, fields: seen}
			f.fill(want.ProtoReflect(), nil)
			for form, there := range map[string]func(proto.Message, theirs) error{"JSON": throughJSON, "protobuf": throughProtobuf} {
				got, their := root()
				proto.Merge(got, want)
				if err := there(got, their); err != nil {
					t.Errorf("%s in %s: %v", name, form, err)
				} else if !proto.Equal(got, want) {
					t.Errorf("%s in %s:\n%s", name, form, differ(want, got))
				}
			}
		}
	}
	if len(seen) < 500 {
		t.Errorf("only %d fields were looked at", len(seen))
	}
	t.Logf("%d fields", len(seen))
}

// differ shows the first difference of two messages.
func differ(want, got proto.Message) string {
	a, _ := api.MarshalJSON(want)
	b, _ := api.MarshalJSON(got)
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	at := func(s []byte) string { return string(s[max(0, i-100):min(len(s), i+100)]) }
	return "want …" + at(a) + "…\n got …" + at(b) + "…"
}

func throughJSON(m proto.Message, their theirs) error {
	raw, err := api.MarshalJSON(m)
	if err != nil {
		return err
	}
	if err := their.UnmarshalJSON(raw); err != nil {
		return fmt.Errorf("mesos-go does not read %.200s: %w", raw, err)
	}
	if raw, err = their.MarshalJSON(); err != nil {
		return err
	}
	if err := api.UnmarshalJSON(raw, m); err != nil {
		return fmt.Errorf("we do not read %.200s: %w", raw, err)
	}
	return nil
}

func throughProtobuf(m proto.Message, their theirs) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if err := their.Unmarshal(raw); err != nil {
		return err
	}
	if raw, err = their.Marshal(); err != nil {
		return err
	}
	return proto.Unmarshal(raw, m)
}

// FuzzJSONIsMesosGos: mesos-go reads from our JSON of any message the same as from the message
// itself, and we read the same from its JSON.
func FuzzJSONIsMesosGos(f *testing.F) {
	for _, root := range roots {
		m, _ := root()
		(&filler{fields: map[protoreflect.FullName]bool{}}).fill(m.ProtoReflect(), nil)
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for name, root := range roots {
			m, their := root()
			if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, m) != nil || !plain(m.ProtoReflect()) {
				continue
			}
			if err := sameToBoth(m, their, root); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

// sameToBoth compares mesos-go's reading of our JSON of m with its reading of m in protobuf, and
// our reading of its JSON with our reading of its protobuf.
func sameToBoth(m proto.Message, byJSON theirs, root func() (proto.Message, theirs)) error {
	raw, err := api.MarshalJSON(m)
	if err == nil {
		err = api.UnmarshalJSON(raw, m) // with its defaults, which are written
	}
	if err != nil {
		return err
	}
	ours, byProtobuf := root()
	again, _ := root()
	proto.Merge(ours, m)
	proto.Merge(again, m)
	if err := errors.Join(throughJSON(ours, byJSON), throughProtobuf(again, byProtobuf)); err != nil {
		return err
	}
	one, err := byJSON.MarshalJSON()
	if err != nil {
		return err
	}
	if two, err := byProtobuf.MarshalJSON(); err != nil || !bytes.Equal(one, two) {
		return fmt.Errorf("of %s mesos-go reads\n%s by JSON and\n%s by protobuf, %w", raw, one, two, err)
	}
	if !proto.Equal(ours, again) {
		return fmt.Errorf("of what mesos-go writes we read by JSON and by protobuf:\n%s", differ(again, ours))
	}
	return nil
}

// plain reports whether JSON can say all that is in m: text that is no UTF-8 and enums'
// values without a name it cannot, and mesos-go knows no infinity in it.
func plain(m protoreflect.Message) bool {
	ok := true
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !d.IsList() {
			ok = plainValue(d, v)
			return ok
		}
		for i := range v.List().Len() {
			ok = ok && plainValue(d, v.List().Get(i))
		}
		return ok
	})
	return ok
}

func plainValue(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	switch {
	case d.Message() != nil:
		return plain(v.Message())
	case d.Kind() == protoreflect.StringKind:
		return utf8.ValidString(v.String())
	case d.Enum() != nil:
		return d.Enum().Values().ByNumber(v.Enum()) != nil
	case d.Kind() == protoreflect.DoubleKind:
		return !math.IsInf(v.Float(), 0) && !math.IsNaN(v.Float())
	}
	return true
}

// TestWhatMesosGoCannotSay is why the fuzz target leaves something out.
func TestWhatMesosGoCannotSay(t *testing.T) {
	var r agent.Response
	if err := r.UnmarshalJSON([]byte(`{"type":"GET_METRICS","get_metrics":{"metrics":[{"name":"m","value":"Infinity"}]}}`)); err == nil || !strings.Contains(err.Error(), "float64") {
		t.Errorf("infinity: %v", err)
	}
}
