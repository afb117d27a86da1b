package wiretest

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxDepth bounds how deep messages that contain themselves are walked.
const maxDepth = 12

// UnknownEnums calls each with a request for every enum that a request of that type can hold, in
// which only that enum is set, to a value above its last. path names the field.
func UnknownEnums(t testing.TB, request protoreflect.MessageType, each func(path string, req proto.Message)) (n int) {
	t.Helper()
	var walk func(d protoreflect.MessageDescriptor, path string, seen map[protoreflect.FullName]int, put func(protoreflect.Message) proto.Message, depth int)
	walk = func(d protoreflect.MessageDescriptor, path string, seen map[protoreflect.FullName]int, put func(protoreflect.Message) proto.Message, depth int) {
		if seen[d.FullName()] > 0 || depth > maxDepth {
			return
		}
		seen[d.FullName()]++
		defer func() { seen[d.FullName()]-- }()
		for i, fields := 0, d.Fields(); i < fields.Len(); i++ {
			f := fields.Get(i)
			value := f
			if f.IsMap() {
				value = f.MapValue()
			}
			at := path + string(f.Name())
			// build returns a request in which f holds v.
			build := func(of func(protoreflect.Message) protoreflect.Value) proto.Message {
				m := newMessage(t, d)
				switch {
				case f.IsMap():
					m.Mutable(f).Map().Set(f.MapKey().Default().MapKey(), of(m))
				case f.IsList():
					m.Mutable(f).List().Append(of(m))
				default:
					m.Set(f, of(m))
				}
				return put(m)
			}
			switch {
			case value.Enum() != nil:
				last := protoreflect.EnumNumber(0)
				for j, values := 0, value.Enum().Values(); j < values.Len(); j++ {
					last = max(last, values.Get(j).Number())
				}
				n++
				each(at, build(func(protoreflect.Message) protoreflect.Value { return protoreflect.ValueOfEnum(last + 1) }))
			case value.Message() != nil:
				walk(value.Message(), at+".", seen, func(inner protoreflect.Message) proto.Message {
					return build(func(protoreflect.Message) protoreflect.Value { return protoreflect.ValueOfMessage(inner) })
				}, depth+1)
			}
		}
	}
	walk(request.Descriptor(), "", map[protoreflect.FullName]int{}, func(m protoreflect.Message) proto.Message { return m.Interface() }, 0)
	return n
}

// newMessage returns an empty message of a type that is linked in.
func newMessage(t testing.TB, d protoreflect.MessageDescriptor) protoreflect.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New()
}
