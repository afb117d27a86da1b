package api

import (
	"errors"
	"fmt"
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// Bounds. The first is Mesos'; the others keep paths and keys within what the
// kernel and the engine take, and stop a name before it costs anything.
const (
	maxIDValue  = 242
	maxIDLevels = 32
	maxIDText   = 2048
)

// Check says what is wrong with id, in Mesos' words.
func CheckID(id *mesosv1.ContainerID) error {
	prefix, total := "", 0
	for level := 1; id != nil; level++ {
		if level > maxIDLevels {
			return fmt.Errorf("'ContainerID.parent' is invalid: more than %d levels", maxIDLevels)
		}
		if err := checkIDValue(id.GetValue()); err != nil {
			return fmt.Errorf("%s%w", prefix, err)
		}
		if total += len(id.GetValue()) + 1; total > maxIDText {
			return fmt.Errorf("all values of 'ContainerID' exceed the maximum length (%d)", maxIDText)
		}
		prefix += "'ContainerID.parent' is invalid: "
		id = id.GetParent()
	}
	return nil
}

func checkIDValue(v string) error {
	bad := func(r rune) bool { return r < ' ' || r == 0x7f || strings.ContainsRune(`/\. `, r) }
	switch {
	case v == "":
		return errors.New("ID must not be empty")
	case len(v) > maxIDValue:
		return fmt.Errorf("'ContainerID.value' '%s' exceeds the maximum length (%d)", v, maxIDValue)
	case v == "." || v == "..":
		return fmt.Errorf("'ContainerID.value' '%s' is disallowed", v)
	case strings.ContainsFunc(v, bad):
		return fmt.Errorf("'ContainerID.value' '%s' contains invalid characters", v)
	}
	return nil
}

// Text is id as text, root.child.grandchild.
func FormatID(id *mesosv1.ContainerID) string {
	text := id.GetValue()
	for p := id.GetParent(); p != nil; p = p.GetParent() {
		text = p.GetValue() + "." + text
	}
	return text
}

// Parse is Text's way back.
func ParseID(text string) *mesosv1.ContainerID {
	var id *mesosv1.ContainerID
	for v := range strings.SplitSeq(text, ".") {
		id = &mesosv1.ContainerID{Value: &v, Parent: id}
	}
	return id
}

// Root is the root's value of a name as text.
func RootOf(text string) string {
	root, _, _ := strings.Cut(text, ".")
	return root
}

// Parent is the name of the container that the one named text is in, and its own
// value; the parent is "" for a root.
func SplitID(text string) (parent, value string) {
	if i := strings.LastIndexByte(text, '.'); i >= 0 {
		return text[:i], text[i+1:]
	}
	return "", text
}
