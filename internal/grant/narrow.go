package grant

import "strings"

// Denied is a grant that a program did not get, or not as its document asks for it.
type Denied struct {
	Pos   Pos    `json:"pos"`
	Path  string `json:"path"` // where it stands in the document, as in Descriptor.Name
	Asked string `json:"asked"`
	Given string `json:"given,omitempty"` // "" is nothing: the program reads null
}

// Narrow returns a copy of doc within s: a mount gets the rights that both have, and null replaces a grant that is not
// allowed. It also returns the reduced grants.
func Narrow(doc *Document, s *Set) (*Document, []Denied) {
	out := &Document{Root: doc.Root.Clone()}
	var denied []Denied
	_ = out.Root.Walk(func(path string, v *Value) error {
		asked := *v.Grant
		given, ok := s.Allow(asked)
		switch {
		case !ok:
			denied = append(denied, Denied{Pos: v.Pos, Path: path, Asked: asked.String()})
			v.Form, v.Grant = Null, nil
		case given.Rights != asked.Rights:
			denied = append(denied, Denied{Pos: v.Pos, Path: path, Asked: asked.String(), Given: given.String()})
			v.Grant = &given
		}
		return nil
	})
	return out, denied
}

// Decide returns a program's document, and the reduced grants. Wish is the image's document, asked the request's;
// either may be nil, not both. Allowed has the operator's limits, nil for none. With both documents the request's is
// the program's argument, but its grants are limited to the image's wish.
func Decide(wish, asked *Document, allowed *Set) (*Document, []Denied) {
	if allowed == nil {
		allowed = Everything()
	}
	if asked == nil {
		return Narrow(wish, allowed)
	}
	if wish != nil {
		allowed = allowed.Meet(Of(wish))
	}
	return Narrow(asked, allowed)
}

// Matches reports whether text is as pattern says: * stands for any text, also none and with slashes.
func Matches(pattern, text string) bool {
	if pattern == "" {
		return true
	}
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}
