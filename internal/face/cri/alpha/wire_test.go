package alpha

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestNumbers compares the API's numbers with its clients of 2017.
func TestNumbers(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 290, cri.File_cri1alpha_cri1alpha_proto)
}

// TestWhatIsRecodedIsAlike compares each field that recode copies with the one of v1 that has its number.
func TestWhatIsRecodedIsAlike(t *testing.T) {
	old := cri.File_cri1alpha_cri1alpha_proto.Messages()
	var compared int
	for i := range old.Len() {
		m := old.Get(i)
		n := v1.File_cri_v1_runtime_proto.Messages().ByName(m.Name())
		if n == nil {
			if m.Name() != "StorageIdentifier" {
				t.Errorf("message %s is not in v1", m.Name())
			}
			continue
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			g := n.Fields().ByNumber(f.Number())
			alike := g != nil && kind(f) != "message NamespaceOption" && f.Name() == g.Name() && f.Cardinality() == g.Cardinality() && kind(f) == kind(g)
			secret := f.FullName() == "runtime.KeyValue.value" && g != nil && g.Kind() == protoreflect.BytesKind
			if left := unlike(f.FullName()); left == (alike || secret) && m.Name() != "NamespaceOption" {
				t.Errorf("field %s: left out is %v, v1 has %v", f.FullName(), left, g)
			}
			compared++
		}
		if e := m.Enums(); e.Len() > 0 {
			t.Errorf("message %s has enums of its own", m.Name())
		}
	}
	if compared < 200 {
		t.Errorf("%d fields compared", compared)
	}
}

func kind(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map of " + f.MapValue().Kind().String()
	case f.Message() != nil:
		return "message " + string(f.Message().Name())
	case f.Enum() != nil:
		return "enum " + string(f.Enum().Name())
	}
	return f.Kind().String()
}
