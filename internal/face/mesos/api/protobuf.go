package api

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// errNotText is what a string is refused with that is none. Names, commands and
// environments go on as JSON here, which would change them.
var errNotUTF8 = errors.New("a string is no UTF-8") //nolint:gochecknoglobals // an error value

// readProtobuf reads a message as Mesos does it in C++: no deeper than that goes,
// and a value that its enum does not have is none.
func readProtobuf(raw []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{RecursionLimit: maxDepth, AllowPartial: true}).Unmarshal(raw, m); err != nil {
		return err
	}
	if err := normalize(m.ProtoReflect()); err != nil {
		return err
	}
	return proto.CheckInitialized(m)
}

// settle clears the fields of enums whose value has no name, and looks at what is
// to be text.
func normalize(m protoreflect.Message) error {
	for f, v := range m.Range {
		var err error
		switch {
		case f.IsList():
			err = normalizeList(f, v.List())
		case f.Message() != nil:
			err = normalize(v.Message())
		case !knownEnumValue(f, v):
			m.Clear(f)
		default:
			err = checkUTF8(f, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func normalizeList(f protoreflect.FieldDescriptor, list protoreflect.List) error {
	keep := 0
	for i := range list.Len() {
		v := list.Get(i)
		err := checkUTF8(f, v)
		if f.Message() != nil {
			err = normalize(v.Message())
		}
		if err != nil {
			return err
		}
		if knownEnumValue(f, v) {
			list.Set(keep, v)
			keep++
		}
	}
	list.Truncate(keep)
	return nil
}

func checkUTF8(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	if f.Kind() == protoreflect.StringKind && !utf8.ValidString(v.String()) {
		return errNotUTF8
	}
	return nil
}

// known is false for the value of an enum that does not have it.
func knownEnumValue(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return f.Enum() == nil || f.Enum().Values().ByNumber(v.Enum()) != nil
}
