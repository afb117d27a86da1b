// Package enums refuses requests in which an enum has a value that this version does not know.
//
// Handlers compare an enum with the values they know, and whatever is left is easily read as the
// mildest: no AppArmor profile, no seccomp filter. A request is therefore checked before any
// handler sees it. Start at Check.
package enums

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/weaken"
)

// Check returns InvalidArgument, with the path of the field, when an enum in a message has a value
// that the protocol as we have it does not define.
func Check(m proto.Message) error {
	if m == nil || weaken.Off(weaken.EnumValues) {
		return nil
	}
	return check(m.ProtoReflect(), "")
}

// Receive receives a message of a stream by recv, and checks it.
func Receive(recv func(any) error, m any) error {
	if err := recv(m); err != nil {
		return err
	}
	if m, ok := m.(proto.Message); ok {
		return Check(m)
	}
	return nil
}

func check(m protoreflect.Message, at string) (err error) {
	if !holdsEnums(m.Descriptor()) {
		return nil
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		path := at + string(fd.Name())
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				err = checkValue(fd.MapValue(), v, path+"["+k.String()+"]")
				return err == nil
			})
		case fd.IsList():
			for i, list := 0, v.List(); i < list.Len() && err == nil; i++ {
				err = checkValue(fd, list.Get(i), path+"["+strconv.Itoa(i)+"]")
			}
		default:
			err = checkValue(fd, v, path)
		}
		return err == nil
	})
	return err
}

func checkValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) error {
	switch {
	case fd.Enum() != nil:
		if fd.Enum().Values().ByNumber(v.Enum()) == nil {
			return invalid.Errorf("%s: %d is no %s that this version knows", path, v.Enum(), fd.Enum().Name())
		}
	case fd.Message() != nil:
		return check(v.Message(), path+".")
	}
	return nil
}

// holding remembers which messages can hold an enum: protoreflect.FullName → bool.
var holding sync.Map //nolint:gochecknoglobals // a cache of what never changes

func holdsEnums(d protoreflect.MessageDescriptor) bool {
	if known, ok := holding.Load(d.FullName()); ok {
		return known.(bool) //nolint:forcetypeassert // nothing else is stored
	}
	holds := reaches(d, map[protoreflect.FullName]bool{})
	holding.Store(d.FullName(), holds)
	return holds
}

func reaches(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[d.FullName()] {
		return false
	}
	seen[d.FullName()] = true
	for i, fields := 0, d.Fields(); i < fields.Len(); i++ {
		f := fields.Get(i)
		if f.Enum() != nil || f.Message() != nil && reaches(f.Message(), seen) {
			return true
		}
	}
	return false
}
