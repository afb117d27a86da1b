package kata

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// Policy decides about each request, in addition to the options' lists. Its errors are
// PermissionDenied for a request that is not allowed.
type Policy interface {
	// Served reports whether policies can be set.
	Served() bool
	// InForce reports whether there is a policy.
	InForce() bool
	// Ask decides about a request, which is input as JSON. The caller calls end when the request
	// has ended: the policy drops its state of a failed one.
	Ask(ctx context.Context, request string, input []byte) (end func(failed bool), err error)
	// Replace sets a policy if the one in force allows it; input is the request as JSON. It
	// returns InvalidArgument for a text that is no policy.
	Replace(ctx context.Context, text string, input []byte) error
}

const (
	setPolicyRequest  = "SetPolicyRequest"
	readStreamRequest = "ReadStreamRequest"
)

// policyFeature is the feature in the agent's details if policies can be set.
const policyFeature = "agent-policy"

// SetPolicy implements katav1.AgentServiceService.
func (s *service) SetPolicy(ctx context.Context, req *katav1.SetPolicyRequest) (*emptypb.Empty, error) {
	p := s.face.o.Policy
	if p == nil || !p.Served() {
		return nil, refuse(codes.Unimplemented, "SetPolicy: this guest cannot evaluate policies: its image has no longshore-policy")
	}
	input, err := policyInput(req)
	if err != nil {
		return nil, err
	}
	err = p.Replace(ctx, req.GetPolicy(), input)
	switch {
	case errdefs.IsPermissionDenied(err):
		err = refuse(codes.PermissionDenied, "%v", err)
	case errdefs.IsInvalidArgument(err):
		err = refuse(codes.InvalidArgument, "%v", err)
	}
	return &emptypb.Empty{}, err
}

// ask has the policy decide about a request that was decoded. SetPolicy asks by itself,
// since no other policy may be set between the question and its answer.
func (f *Face) ask(ctx context.Context, name string, decoded any) (end func(failed bool), err error) {
	end = func(bool) {}
	if f.o.Policy == nil || !f.o.Policy.InForce() || name == "" || name == setPolicyRequest {
		return end, nil
	}
	m, ok := decoded.(proto.Message)
	if !ok {
		return end, refuse(codes.PermissionDenied, "%s is blocked by policy: it is not a message", name)
	}
	input, err := policyInput(m)
	if err != nil {
		return end, err
	}
	end, err = f.o.Policy.Ask(ctx, name, input)
	if errdefs.IsPermissionDenied(err) {
		if name == readStreamRequest {
			withhold(ctx)
			return end, nil
		}
		err = refuse(codes.PermissionDenied, "%v", err)
	}
	return end, err
}

// withholding is the key of a call's *bool that says that its answer has no output.
type withholding struct{}

func withhold(ctx context.Context) {
	if on, ok := ctx.Value(withholding{}).(*bool); ok {
		*on = true
	}
}

// withheld reports whether a call that reads output is to answer none. Shims take an error
// there for the end of the process, so it gets the end of the output instead, when that has
// come.
func withheld(ctx context.Context) bool {
	on, ok := ctx.Value(withholding{}).(*bool)
	return ok && *on
}

// maxPolicyBytes bounds a field of bytes in a policy's input: it becomes a list of numbers, as in
// Kata's agent.
const maxPolicyBytes = 256 << 10

// policyInput is a request in the form for policies: with Kata's agent's names of fields, and all
// of them, also empty ones. For a copied file it has the attributes, but not the content.
func policyInput(m proto.Message) ([]byte, error) {
	if file, ok := m.(*katav1.CopyFileRequest); ok {
		return copyFileInput(file)
	}
	return appendMessage(nil, m.ProtoReflect())
}

// copyFileInput has the target of a link, which a policy could not make out of bytes.
func copyFileInput(f *katav1.CopyFileRequest) ([]byte, error) {
	in := struct {
		Path          string  `json:"path"`
		FileType      string  `json:"file_type"`
		SymlinkTarget *string `json:"symlink_target"`
		FileSize      int64   `json:"file_size"`
		FileMode      uint32  `json:"file_mode"`
		DirMode       uint32  `json:"dir_mode"`
		UID           int32   `json:"uid"`
		GID           int32   `json:"gid"`
		Offset        int64   `json:"offset"`
	}{
		Path: f.GetPath(), FileSize: f.GetFileSize(), FileMode: f.GetFileMode(), DirMode: f.GetDirMode(), UID: f.GetUid(), GID: f.GetGid(), Offset: f.GetOffset(),
	}
	switch f.GetFileMode() & unix.S_IFMT {
	case unix.S_IFREG:
		in.FileType = "Regular"
	case unix.S_IFDIR:
		in.FileType = "Directory"
	case unix.S_IFLNK:
		in.FileType = "Symlink"
		target := string(f.GetData())
		if !utf8.ValidString(target) {
			return nil, refuse(codes.PermissionDenied, "CopyFileRequest is blocked by policy: the link's target is not UTF-8")
		}
		in.SymlinkTarget = &target
	default:
		in.FileType = "Unknown"
	}
	return json.Marshal(in)
}

// appendMessage appends a message as a JSON object.
func appendMessage(out []byte, m protoreflect.Message) (_ []byte, err error) {
	out = append(out, '{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if i > 0 {
			out = append(out, ',')
		}
		fd := fields.Get(i)
		if one := fd.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if out, err = appendOneof(out, m, fd, one); err != nil {
				return nil, err
			}
			continue
		}
		out = strconv.AppendQuote(out, fieldName(fd))
		out = append(out, ':')
		switch {
		case fd.IsList():
			out, err = appendList(out, fd, m.Get(fd).List())
		case fd.IsMap():
			out, err = appendMap(out, fd, m.Get(fd).Map())
		case fd.HasPresence() && !m.Has(fd):
			out = append(out, "null"...)
		default:
			out, err = appendValue(out, fd, m.Get(fd))
		}
		if err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

// fieldName is the name that the reference's language allows for a field.
func fieldName(fd protoreflect.FieldDescriptor) string {
	if fd.Name() == "type" {
		return "type_"
	}
	return string(fd.Name())
}

// appendOneof appends one of several fields, as an object that names it. There is no group
// here that has more than one.
func appendOneof(out []byte, m protoreflect.Message, fd protoreflect.FieldDescriptor, group protoreflect.OneofDescriptor) (_ []byte, err error) {
	out = strconv.AppendQuote(out, string(group.Name()))
	if !m.Has(fd) {
		return append(out, ":null"...), nil
	}
	name := string(fd.Name())
	out = append(out, ":{"...)
	out = strconv.AppendQuote(out, string(name[0]-'a'+'A')+name[1:])
	out = append(out, ':')
	if out, err = appendValue(out, fd, m.Get(fd)); err != nil {
		return nil, err
	}
	return append(out, '}'), nil
}

func appendList(out []byte, fd protoreflect.FieldDescriptor, list protoreflect.List) (_ []byte, err error) {
	out = append(out, '[')
	for i := range list.Len() {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendValue(out, fd, list.Get(i)); err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

func appendMap(out []byte, fd protoreflect.FieldDescriptor, entries protoreflect.Map) (_ []byte, err error) {
	out = append(out, '{')
	first := true
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !first {
			out = append(out, ',')
		}
		first = false
		if out, err = appendText(out, k.String()); err != nil {
			return false
		}
		out = append(out, ':')
		out, err = appendValue(out, fd.MapValue(), v)
		return err == nil
	})
	return append(out, '}'), err
}

func appendValue(out []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(out, v.Bool()), nil
	case protoreflect.EnumKind:
		return strconv.AppendInt(out, int64(v.Enum()), 10), nil
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sint32Kind, protoreflect.Sint64Kind, protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		return strconv.AppendInt(out, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(out, v.Uint(), 10), nil
	case protoreflect.StringKind:
		return appendText(out, v.String())
	case protoreflect.BytesKind:
		return appendBytes(out, string(fd.Name()), v.Bytes())
	case protoreflect.MessageKind:
		return appendMessage(out, v.Message())
	default:
		return nil, fmt.Errorf("a policy cannot be asked about the field %s of the kind %s", fd.Name(), fd.Kind())
	}
}

func appendText(out []byte, s string) ([]byte, error) {
	b, err := json.Marshal(s)
	return append(out, b...), err
}

func appendBytes(out []byte, name string, b []byte) ([]byte, error) {
	if len(b) > maxPolicyBytes {
		return nil, refuse(codes.PermissionDenied, "blocked by policy: it can be asked about %d bytes of %s, and these are %d", maxPolicyBytes, name, len(b))
	}
	out = append(out, '[')
	for i, c := range b {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(c), 10)
	}
	return append(out, ']'), nil
}
