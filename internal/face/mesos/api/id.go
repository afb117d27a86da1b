package api

import (
	"errors"
	"fmt"
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// maxIDValue is Mesos' limit. The others keep paths and keys within the limits of the
// kernel and the engine, and stop a long id before it costs anything.
const (
	maxIDValue  = 242
	maxIDLevels = 32
	maxIDText   = 2048
)

// CheckID returns an error for an invalid container id, in Mesos' words.
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

// FormatID returns the text form of an id, which is also the engine's key: the values
// from the root down, separated by dots.
func FormatID(id *mesosv1.ContainerID) string {
	text := id.GetValue()
	for p := id.GetParent(); p != nil; p = p.GetParent() {
		text = p.GetValue() + "." + text
	}
	return text
}

// ParseID is the inverse of FormatID.
func ParseID(text string) *mesosv1.ContainerID {
	var id *mesosv1.ContainerID
	for v := range strings.SplitSeq(text, ".") {
		id = &mesosv1.ContainerID{Value: &v, Parent: id}
	}
	return id
}

// RootOf returns the root's value of an id in text form.
func RootOf(text string) string {
	root, _, _ := strings.Cut(text, ".")
	return root
}

// SplitID splits an id in text form into the parent's id, "" for a root, and the
// container's own value.
func SplitID(text string) (parent, value string) {
	if i := strings.LastIndexByte(text, '.'); i >= 0 {
		return text[:i], text[i+1:]
	}
	return "", text
}
