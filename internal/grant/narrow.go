package grant

// Denied is a grant that a program did not get, or not as its document asks for it.
type Denied struct {
	Pos   Pos    `json:"pos"`
	Path  string `json:"path"` // where it stands in the document, as in Descriptor.Name
	Asked string `json:"asked"`
	Given string `json:"given,omitempty"` // "" is nothing: the program reads null
}

// Narrow returns a copy of doc with no more than s allows: of a mount the rights that both have, and null in the place of a grant
// that is not allowed. It also says what was taken away.
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

// Decide returns the document that a program gets, and what was taken away from it. Wish is the image's document, asked the one that
// came with the request; either may be nil, not both. Allowed is what the operator allows, nil if the operator does not say. With both documents the
// request's is the program's argument, but it is given nothing for which the image does not wish.
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
