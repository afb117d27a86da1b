package api

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// errNotUTF8 is returned for a string field that is not UTF-8. Names, commands and
// environments are stored as JSON, which would change them.
var errNotUTF8 = errors.New("a string is not UTF-8") //nolint:gochecknoglobals // an error value

// readProtobuf decodes a message as Mesos does in C++: with the same limit of nesting,
// and with unknown enum values left out.
func readProtobuf(raw []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{RecursionLimit: maxDepth, AllowPartial: true}).Unmarshal(raw, m); err != nil {
		return err
	}
	if err := normalize(m.ProtoReflect()); err != nil {
		return err
	}
	return proto.CheckInitialized(m)
}

// normalize clears enum fields with unknown values, and checks that strings are UTF-8.
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

// checkUTF8 returns errNotUTF8 for a string that is not UTF-8.
func checkUTF8(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	if f.Kind() == protoreflect.StringKind && !utf8.ValidString(v.String()) {
		return errNotUTF8
	}
	return nil
}

// knownEnumValue is false for a value that its enum does not have; it is true for
// fields of other kinds.
func knownEnumValue(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return f.Enum() == nil || f.Enum().Values().ByNumber(v.Enum()) != nil
}
