package door

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/longshore/longshore/internal/face/mesos/pbjson"
)

// errNotText is what a string is refused with that is none. Names, commands and
// environments go on as JSON here, which would change them.
var errNotText = errors.New("a string is no UTF-8") //nolint:gochecknoglobals // an error value

// readProtobuf reads a message as Mesos does it in C++: no deeper than that goes,
// and a value that its enum does not have is none.
func readProtobuf(raw []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{RecursionLimit: pbjson.MaxDepth, AllowPartial: true}).Unmarshal(raw, m); err != nil {
		return err
	}
	if err := settle(m.ProtoReflect()); err != nil {
		return err
	}
	return proto.CheckInitialized(m)
}

// settle clears the fields of enums whose value has no name, and looks at what is
// to be text.
func settle(m protoreflect.Message) error {
	for f, v := range m.Range {
		var err error
		switch {
		case f.IsList():
			err = settleList(f, v.List())
		case f.Message() != nil:
			err = settle(v.Message())
		case !known(f, v):
			m.Clear(f)
		default:
			err = text(f, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func settleList(f protoreflect.FieldDescriptor, list protoreflect.List) error {
	keep := 0
	for i := range list.Len() {
		v := list.Get(i)
		err := text(f, v)
		if f.Message() != nil {
			err = settle(v.Message())
		}
		if err != nil {
			return err
		}
		if known(f, v) {
			list.Set(keep, v)
			keep++
		}
	}
	list.Truncate(keep)
	return nil
}

func text(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	if f.Kind() == protoreflect.StringKind && !utf8.ValidString(v.String()) {
		return errNotText
	}
	return nil
}

// known is false for the value of an enum that does not have it.
func known(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return f.Enum() == nil || f.Enum().Values().ByNumber(v.Enum()) != nil
}
