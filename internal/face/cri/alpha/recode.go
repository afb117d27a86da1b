package alpha

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
)

// CRI v1 has grown out of this API: common fields have the same number, name and type in both.
// Messages are therefore translated field by field of equal number. Differing fields are listed
// here; a test compares all others.

// unlike are the fields of this API with a number that has another meaning in v1.
func unlike(name protoreflect.FullName) bool {
	switch name {
	case "runtime.LinuxSandboxSecurityContext.namespace_options", "runtime.LinuxContainerSecurityContext.namespace_options", "runtime.Namespace.options",
		"runtime.ContainerConfig.argdata", "runtime.FilesystemUsage.storage_id":
		return true
	}
	return false
}

// recode copies the common fields of two messages. One of them is of this API. Unknown fields of
// newer clients are dropped, because their numbers may have another meaning in v1.
func recode(from, to protoreflect.Message) {
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		t := to.Descriptor().Fields().ByNumber(f.Number())
		if t == nil || unlike(f.FullName()) || unlike(t.FullName()) {
			return true
		}
		switch {
		case f.IsMap():
			m := to.Mutable(t).Map()
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				m.Set(k, v)
				return true
			})
		case f.IsList():
			l := to.Mutable(t).List()
			for i := range v.List().Len() {
				if f.Message() == nil {
					l.Append(v.List().Get(i))
					continue
				}
				e := l.NewElement()
				recode(v.List().Get(i).Message(), e.Message())
				l.Append(e)
			}
		case f.Message() != nil:
			recode(v.Message(), to.Mutable(t).Message())
		case f.Kind() == protoreflect.StringKind && t.Kind() == protoreflect.BytesKind:
			to.Set(t, protoreflect.ValueOfBytes([]byte(v.String())))
		default:
			to.Set(t, v)
		}
		return true
	})
}

// as returns a message of the other API with the common fields.
func as[T proto.Message](from proto.Message) (to T) {
	to = to.ProtoReflect().New().Interface().(T) //nolint:forcetypeassert // it is of that type
	if from != nil && from.ProtoReflect().IsValid() {
		recode(from.ProtoReflect(), to.ProtoReflect())
	}
	return to
}

// modes says which namespaces are the pod's and which the node's.
func modes(o *cri.NamespaceOption) *v1.NamespaceOption {
	mode := func(host bool) v1.NamespaceMode {
		if host {
			return v1.NamespaceMode_NODE
		}
		return v1.NamespaceMode_POD
	}
	return &v1.NamespaceOption{Network: mode(o.GetHostNetwork()), Pid: mode(o.GetHostPid()), Ipc: mode(o.GetHostIpc())}
}

// booleans is the other way round.
func booleans(o *v1.NamespaceOption) *cri.NamespaceOption {
	return &cri.NamespaceOption{
		HostNetwork: o.GetNetwork() == v1.NamespaceMode_NODE, HostPid: o.GetPid() == v1.NamespaceMode_NODE, HostIpc: o.GetIpc() == v1.NamespaceMode_NODE,
	}
}
