package api

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

func id(values ...string) (id *mesosv1.ContainerID) {
	for _, v := range values {
		id = &mesosv1.ContainerID{Value: &v, Parent: id}
	}
	return id
}

func TestCheck(t *testing.T) {
	deep := make([]string, 10000)
	for i := range deep {
		deep[i] = "x"
	}
	long := strings.Repeat("x", 242)
	for _, c := range []struct {
		id   *mesosv1.ContainerID
		want string
	}{
		{id("a"), ""},
		{id("a", "b-_c", "ünder"), ""},
		{id(long), ""},
		{id(""), "ID must not be empty"},
		{id("a", ""), "ID must not be empty"},
		{id("", "a"), "'ContainerID.parent' is invalid: ID must not be empty"},
		{id("..", "b", "a"), "'ContainerID.parent' is invalid: 'ContainerID.parent' is invalid: 'ContainerID.value' '..' is disallowed"},
		{id(long + "x"), "'ContainerID.value' '" + long + "x' exceeds the maximum length (242)"},
		{id("a.b"), "'ContainerID.value' 'a.b' contains invalid characters"},
		{id("a/b"), "'ContainerID.value' 'a/b' contains invalid characters"},
		{id(`a\b`), `'ContainerID.value' 'a\b' contains invalid characters`},
		{id("a b"), "'ContainerID.value' 'a b' contains invalid characters"},
		{id("a\x00b"), "'ContainerID.value' 'a\x00b' contains invalid characters"},
		{id("a\x7f"), "'ContainerID.value' 'a\x7f' contains invalid characters"},
		{id(deep...), "'ContainerID.parent' is invalid: more than 32 levels"},
		{id(long, long, long, long, long, long, long, long, long), "all values of 'ContainerID' exceed the maximum length (2048)"},
	} {
		err := CheckID(c.id)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%.100v, want %.100q", err, c.want)
		}
	}
}

func TestTextAndBack(t *testing.T) {
	if got := FormatID(id("root", "child", "grandchild")); got != "root.child.grandchild" || RootOf(got) != "root" {
		t.Errorf("text %q, root %q", got, RootOf(got))
	}
	if parent, value := SplitID("root.child.grandchild"); parent != "root.child" || value != "grandchild" {
		t.Errorf("parent %q, value %q", parent, value)
	}
	if parent, value := SplitID("root"); parent != "" || value != "root" {
		t.Errorf("of a root: %q, %q", parent, value)
	}
}

// FuzzIDs: a name that is taken is found again from its text, and leads nowhere
// as a path.
func FuzzIDs(f *testing.F) {
	f.Add("root", "child")
	f.Add("..", "a/b")
	f.Fuzz(func(t *testing.T, a, b string) {
		in := id(a, b)
		if CheckID(in) != nil {
			return
		}
		if back := ParseID(FormatID(in)); !proto.Equal(in, back) {
			t.Errorf("%v became %v", in, back)
		}
		for _, v := range []string{a, b} {
			if v == "" || v == "." || v == ".." || strings.ContainsAny(v, "/\x00") {
				t.Errorf("%q was taken", v)
			}
		}
	})
}
