package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// MarshalJSON encodes m as Mesos does, which differs from protobuf's JSON mapping:
// names are those of the .proto files, 64-bit integers are numbers, and unset fields
// with a declared default are written with it. The messages of Mesos have no maps,
// oneofs or extensions, and they are not supported.
func MarshalJSON(m proto.Message) ([]byte, error) {
	var e jsonEncoder
	err := e.message(m.ProtoReflect())
	return e.out, err
}

type jsonEncoder struct{ out []byte }

func (e *jsonEncoder) message(m protoreflect.Message) error {
	e.out = append(e.out, '{')
	first := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) && (!f.HasDefault() || f.Cardinality() != protoreflect.Optional) {
			continue
		}
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		e.out = append(e.out, '"')
		e.out = append(e.out, f.Name()...)
		e.out = append(e.out, '"', ':')
		if err := e.field(f, m.Get(f)); err != nil {
			return err
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *jsonEncoder) field(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	if !f.IsList() {
		return e.value(f, v)
	}
	e.out = append(e.out, '[')
	for i := range v.List().Len() {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.value(f, v.List().Get(i)); err != nil {
			return err
		}
	}
	e.out = append(e.out, ']')
	return nil
}

func (e *jsonEncoder) value(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return e.message(v.Message())
	case protoreflect.BoolKind:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case protoreflect.StringKind:
		return e.text(v.String())
	case protoreflect.BytesKind:
		e.out = append(e.out, '"')
		e.out = base64.StdEncoding.AppendEncode(e.out, v.Bytes())
		e.out = append(e.out, '"')
	case protoreflect.EnumKind:
		d := f.Enum().Values().ByNumber(v.Enum())
		if d == nil {
			return fmt.Errorf("field %s: the enum has no value %d", f.FullName(), v.Enum())
		}
		return e.text(string(d.Name()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case protoreflect.DoubleKind:
		e.out = append(e.out, jsonDouble(v.Float())...)
	default:
		return fmt.Errorf("field %s: kind %s", f.FullName(), f.Kind())
	}
	return nil
}

func (e *jsonEncoder) text(s string) error {
	b, err := json.Marshal(s)
	e.out = append(e.out, b...)
	return err
}

// jsonDouble formats f with a fraction always, so that readers in other languages take
// it for a floating point number.
func jsonDouble(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return `"Infinity"`
	case math.IsInf(f, -1):
		return `"-Infinity"`
	case math.IsNaN(f):
		return `"NaN"`
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if strings.Contains(s, ".") {
		return s
	}
	mantissa, exponent, ok := strings.Cut(s, "e")
	if ok {
		return mantissa + ".0e" + exponent
	}
	return s + ".0"
}
