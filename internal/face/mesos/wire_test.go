package mesos

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

func protoFiles() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{mesosv1.File_mesos_v1_mesos_proto, mesosagent.File_mesos_v1_agent_agent_proto}
}

// wire is everything of the protocol that goes over the wire, by its name.
type wire struct {
	fields map[string]protoreflect.FieldDescriptor // "message number"
	values map[string]protoreflect.EnumNumber      // "enum name"
}

func (w wire) message(m protoreflect.MessageDescriptor) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		w.fields[string(m.FullName())+" "+strconv.Itoa(int(f.Number()))] = f
	}
	w.enums(m.Enums())
	for i := range m.Messages().Len() {
		w.message(m.Messages().Get(i))
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
	w := wire{map[string]protoreflect.FieldDescriptor{}, map[string]protoreflect.EnumNumber{}}
	for _, f := range files {
		for i := range f.Messages().Len() {
			w.message(f.Messages().Get(i))
		}
		w.enums(f.Enums())
	}
	return w
}

// typeName is a field's type as .proto files write it, names in full.
func typeName(f protoreflect.FieldDescriptor) string {
	switch {
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
func sameType(full, short string) bool { return full == short || strings.HasSuffix(full, "."+short) }

// TestTheWireIsMesos compares names, numbers and types with the table of the
// contract in testdata: what it has we have, and we have nothing else.
func TestTheWireIsMesos(t *testing.T) {
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
		case "enum":
			n, ok := got.values[p[0]+" "+p[1]]
			if !ok || strconv.Itoa(int(n)) != p[2] {
				t.Errorf("enum %s: %s is %d, want %s", p[0], p[1], n, p[2])
			}
			delete(got.values, p[0]+" "+p[1])
		case "message": // without fields
		case "field":
			got.checkField(t, p)
		default:
			t.Fatalf("what is %q?", sc.Text())
		}
	}
	if lines < 900 {
		t.Errorf("the table has %d lines only", lines)
	}
	for k := range got.fields {
		t.Errorf("field %s is not in the contract", k)
	}
	for k := range got.values {
		t.Errorf("enum value %s is not in the contract", k)
	}
}

// checkField: p is MESSAGE NUMBER NAME required|optional|repeated TYPE
// [default=VALUE].
func (w wire) checkField(t *testing.T, p []string) {
	t.Helper()
	key := p[0] + " " + p[1]
	f := w.fields[key]
	if f == nil {
		t.Errorf("field %s is missing", key)
		return
	}
	if string(f.Name()) != p[2] || f.Cardinality().String() != p[3] || !sameType(typeName(f), p[4]) {
		t.Errorf("field %s is %s %s %s, want %s", key, f.Name(), f.Cardinality(), typeName(f), strings.Join(p[2:], " "))
	}
	want := ""
	if len(p) > 5 {
		want = strings.Trim(strings.TrimPrefix(p[5], "default="), `"`)
	}
	if got := defaultOf(f); got != want {
		t.Errorf("field %s has the default %q, want %q", key, got, want)
	}
	delete(w.fields, key)
}

// defaultOf is a field's declared default as .proto files write it, "" for none.
func defaultOf(f protoreflect.FieldDescriptor) string {
	switch {
	case !f.HasDefault():
		return ""
	case f.Enum() != nil:
		return string(f.DefaultEnumValue().Name())
	case f.Kind() == protoreflect.DoubleKind:
		return strconv.FormatFloat(f.Default().Float(), 'f', 1, 64)
	default:
		return f.Default().String()
	}
}
