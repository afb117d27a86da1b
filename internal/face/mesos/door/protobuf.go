package door

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/longshore/longshore/internal/face/mesos/pbjson"
)

// readProtobuf reads a message as Mesos does it in C++: no deeper than that goes,
// and a value that its enum does not have is none.
func readProtobuf(raw []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{RecursionLimit: pbjson.MaxDepth, AllowPartial: true}).Unmarshal(raw, m); err != nil {
		return err
	}
	dropUnknown(m.ProtoReflect())
	return proto.CheckInitialized(m)
}

// dropUnknown clears the fields of enums whose value has no name.
func dropUnknown(m protoreflect.Message) {
	for f, v := range m.Range {
		switch {
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			dropUnknown(v.Message())
		case f.Enum() == nil:
		case f.IsList():
			keep := 0
			for i := range v.List().Len() {
				if named(f, v.List().Get(i)) {
					v.List().Set(keep, v.List().Get(i))
					keep++
				}
			}
			v.List().Truncate(keep)
		case !named(f, v):
			m.Clear(f)
		}
	}
}

func named(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	return f.Enum().Values().ByNumber(v.Enum()) != nil
}
