// Package wiretest holds a protocol as we have it against the table of its contract:
// names, numbers and types, which are all that goes over the wire.
//
// It must not know any protocol. Start at Compare.
package wiretest

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Compare reads a table and tells what we have otherwise, what we lack, and what we
// have more. The table has at least so many lines, each one of
//
//	enum NAME VALUE NUMBER
//	message NAME, for one that may be without fields
//	field MESSAGE NUMBER NAME [required|optional|repeated] TYPE [default=VALUE]
//	rpc SERVICE/METHOD [stream] REQUEST [stream] RESPONSE
func Compare(t testing.TB, table string, lines int, files ...protoreflect.FileDescriptor) {
	t.Helper()
	w := wire{map[string]protoreflect.FieldDescriptor{}, map[string]protoreflect.EnumNumber{}, map[string]protoreflect.MethodDescriptor{}}
	for _, f := range files {
		w.file(f)
	}
	f, err := os.Open(table)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); n++ {
		kind, rest, _ := strings.Cut(sc.Text(), " ")
		p := strings.Fields(rest)
		switch kind {
		case "rpc":
			w.checkMethod(t, p)
		case "enum":
			w.checkValue(t, p)
		case "message":
		case "field":
			w.checkField(t, p)
		default:
			t.Fatalf("what is %q?", sc.Text())
		}
	}
	if n < lines {
		t.Errorf("the table has %d lines only", n)
	}
	for k := range w.fields {
		t.Errorf("field %s is not in the contract", k)
	}
	for k := range w.values {
		t.Errorf("enum value %s is not in the contract", k)
	}
	for k := range w.methods {
		t.Errorf("rpc %s is not in the contract", k)
	}
}

// wire is everything that goes over it, by its name, less what was compared.
type wire struct {
	fields  map[string]protoreflect.FieldDescriptor // "message number"
	values  map[string]protoreflect.EnumNumber      // "enum name"
	methods map[string]protoreflect.MethodDescriptor
}

func (w wire) file(f protoreflect.FileDescriptor) {
	w.messages(f.Messages())
	w.enums(f.Enums())
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			w.methods[string(s.FullName())+"/"+string(m.Name())] = m
		}
	}
}

func (w wire) messages(list protoreflect.MessageDescriptors) {
	for i := range list.Len() {
		m := list.Get(i)
		if m.IsMapEntry() {
			continue
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			w.fields[string(m.FullName())+" "+strconv.Itoa(int(f.Number()))] = f
		}
		w.enums(m.Enums())
		w.messages(m.Messages())
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

func (w wire) checkValue(t testing.TB, p []string) {
	t.Helper()
	key := p[0] + " " + p[1]
	n, ok := w.values[key]
	if !ok || strconv.Itoa(int(n)) != p[2] {
		t.Errorf("enum %s: %s is %d, want %s", p[0], p[1], n, p[2])
	}
	delete(w.values, key)
}

func (w wire) checkMethod(t testing.TB, p []string) {
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

func (w wire) checkField(t testing.TB, p []string) {
	t.Helper()
	key := p[0] + " " + p[1]
	f := w.fields[key]
	if f == nil {
		t.Errorf("field %s is missing", key)
		return
	}
	delete(w.fields, key)
	name, rest := p[2], p[3:]
	label, value := "", ""
	if rest[0] == "required" || rest[0] == "optional" || rest[0] == "repeated" {
		label, rest = rest[0], rest[1:]
	}
	if len(rest) > 1 {
		value = strings.Trim(strings.TrimPrefix(rest[1], "default="), `"`)
	}
	switch {
	case string(f.Name()) != name, !sameType(typeName(f), rest[0]):
		t.Errorf("field %s is %s %s, want %s", key, f.Name(), typeName(f), strings.Join(p[2:], " "))
	case label == "" && f.IsList(), label != "" && f.Cardinality().String() != label:
		t.Errorf("field %s is %s, want %s", key, f.Cardinality(), strings.Join(p[2:], " "))
	case defaultOf(f) != value:
		t.Errorf("field %s has the default %q, want %q", key, defaultOf(f), value)
	}
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
