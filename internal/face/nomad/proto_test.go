package nomad

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadhclspec "github.com/longshore/longshore/api/nomad/hclspec"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
)

func protoFiles() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		nomaddriver.File_nomad_driver_driver_proto, nomadbase.File_nomad_base_base_proto, nomadhclspec.File_nomad_hclspec_hcl_spec_proto,
		nomadstructs.File_nomad_structs_attribute_proto, nomadstructs.File_nomad_structs_recoverable_error_proto,
	}
}

// wire is everything of a service that goes over the wire, by its name.
type wire struct {
	fields  map[string]protoreflect.FieldDescriptor // "message number"
	values  map[string]protoreflect.EnumNumber      // "enum name"
	methods map[string]protoreflect.MethodDescriptor
}

func (w wire) message(m protoreflect.MessageDescriptor) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		w.fields[string(m.FullName())+" "+strconv.Itoa(int(f.Number()))] = f
	}
	w.enums(m.Enums())
	for i := range m.Messages().Len() {
		if sub := m.Messages().Get(i); !sub.IsMapEntry() {
			w.message(sub)
		}
	}
}

func (w wire) enums(list protoreflect.EnumDescriptors) {
	for i := range list.Len() {
		e := list.Get(i)
		for j := range e.Values().Len() {
			w.values[string(e.FullName())+" "+string(e.Values().Get(j).Name())] = e.Values().Get(j).Number()
		}
	}
}

func wireOf(files []protoreflect.FileDescriptor) wire {
	w := wire{map[string]protoreflect.FieldDescriptor{}, map[string]protoreflect.EnumNumber{}, map[string]protoreflect.MethodDescriptor{}}
	for _, f := range files {
		for i := range f.Messages().Len() {
			w.message(f.Messages().Get(i))
		}
		w.enums(f.Enums())
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				w.methods[string(s.FullName())+"/"+string(m.Name())] = m
			}
		}
	}
	return w
}

// typeName is a field's type as .proto files write it, names in full.
func typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map<" + typeName(f.MapKey()) + "," + typeName(f.MapValue()) + ">"
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	default:
		return f.Kind().String()
	}
}

// sameType compares a name in full with one that may lack its package or the
// message it stands in.
func sameType(full, short string) bool {
	if v, ok := strings.CutPrefix(short, "map<string,"); ok {
		w, isMap := strings.CutPrefix(full, "map<string,")
		return isMap && sameType(strings.TrimSuffix(w, ">"), strings.TrimSuffix(v, ">"))
	}
	return full == short || strings.HasSuffix(full, "."+short)
}

// TestTheWireIsNomads compares names, numbers and types with the table of the
// contract in testdata: what it has we have, and we have nothing else.
func TestTheWireIsNomads(t *testing.T) {
	got := wireOf(protoFiles())
	f, err := os.Open("testdata/numbers.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		kind, rest, _ := strings.Cut(sc.Text(), " ")
		p := strings.Fields(rest)
		switch kind {
		case "rpc":
			got.checkMethod(t, p)
		case "enum":
			n, ok := got.values[p[0]+" "+p[1]]
			if !ok || strconv.Itoa(int(n)) != p[2] {
				t.Errorf("enum %s: %s is %d, want %s", p[0], p[1], n, p[2])
			}
			delete(got.values, p[0]+" "+p[1])
		case "field":
			got.checkField(t, p)
		default:
			t.Fatalf("what is %q?", sc.Text())
		}
	}
	if lines < 250 {
		t.Errorf("the table has %d lines only", lines)
	}
	for k := range got.fields {
		t.Errorf("field %s is not in the contract", k)
	}
	for k := range got.values {
		t.Errorf("enum value %s is not in the contract", k)
	}
	for k := range got.methods {
		t.Errorf("rpc %s is not in the contract", k)
	}
}

// checkMethod: p is SERVICE/METHOD [stream] REQUEST [stream] RESPONSE.
func (w wire) checkMethod(t *testing.T, p []string) {
	t.Helper()
	m := w.methods[p[0]]
	if m == nil {
		t.Errorf("rpc %s is missing", p[0])
		return
	}
	say := func(stream bool, d protoreflect.MessageDescriptor) string {
		if stream {
			return "stream " + string(d.Name())
		}
		return string(d.Name())
	}
	if got := say(m.IsStreamingClient(), m.Input()) + " " + say(m.IsStreamingServer(), m.Output()); got != strings.Join(p[1:], " ") {
		t.Errorf("rpc %s is %s, want %s", p[0], got, strings.Join(p[1:], " "))
	}
	delete(w.methods, p[0])
}

// checkField: p is MESSAGE NUMBER NAME [repeated] TYPE.
func (w wire) checkField(t *testing.T, p []string) {
	t.Helper()
	key := p[0] + " " + p[1]
	f := w.fields[key]
	if f == nil {
		t.Errorf("field %s is missing", key)
		return
	}
	if string(f.Name()) != p[2] || f.IsList() != (p[3] == "repeated") || !sameType(typeName(f), p[len(p)-1]) {
		t.Errorf("field %s is %s %s (list %v), want %s", key, typeName(f), f.Name(), f.IsList(), strings.Join(p[2:], " "))
	}
	delete(w.fields, key)
}
