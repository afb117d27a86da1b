package present

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Plain returns a message as plain JSON values: names as in the .proto file, times in RFC 3339,
// 64-bit numbers as numbers, and every field, so that a script need not test for its presence.
// (protojson writes 64-bit numbers as strings.)
func Plain(m proto.Message) any { return messageJSON(m.ProtoReflect()) }

func messageJSON(m protoreflect.Message) any {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return v.AsTime().Format(time.RFC3339Nano)
	case *durationpb.Duration:
		return v.AsDuration().String()
	}
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		switch {
		case f.IsMap():
			members := map[string]any{}
			m.Get(f).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				members[k.String()] = valueJSON(f.MapValue(), v)
				return true
			})
			out[name] = members
		case f.IsList():
			list := m.Get(f).List()
			items := make([]any, list.Len())
			for j := range items {
				items[j] = valueJSON(f, list.Get(j))
			}
			out[name] = items
		case f.HasPresence() && !m.Has(f):
			out[name] = nil
		default:
			out[name] = valueJSON(f, m.Get(f))
		}
	}
	return out
}

func valueJSON(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return messageJSON(v.Message())
	case protoreflect.BytesKind:
		return string(v.Bytes())
	case protoreflect.EnumKind:
		return string(f.Enum().Values().ByNumber(v.Enum()).Name())
	default:
		return v.Interface()
	}
}

// WriteList writes messages as one indented JSON array.
func WriteList[M proto.Message](w io.Writer, list []M) error {
	items := make([]any, len(list))
	for i, m := range list {
		items[i] = Plain(m)
	}
	return WriteJSON(w, items, true)
}

// WriteLine writes a message as one line.
func WriteLine(w io.Writer, m proto.Message) error { return WriteJSON(w, Plain(m), false) }

// WriteJSON writes a value, with indentation or as one line.
func WriteJSON(w io.Writer, v any, indent bool) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
