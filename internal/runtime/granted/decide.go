package granted

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/document"
)

// decide returns the grants of a container's program, and the denied ones: it gets only grants that its request asks
// for, its image wishes and the operator allows. A request without a document takes the image's; without any document
// there are none.
func (r *Runtime) decide(c core.RuntimeCreate) (*grant.Document, []grant.Denied, error) {
	parse := func(text, where string) (*grant.Document, error) {
		doc, err := document.Parse([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w: %w", where, core.GrantAnnotation, err, errdefs.ErrInvalidArgument)
		}
		return doc, nil
	}
	var wish, asked *grant.Document
	var err error
	if c.Grants.Wish != "" {
		if wish, err = parse(c.Grants.Wish, "the image's"); err != nil {
			return nil, nil, err
		}
	}
	if text, ok := c.Spec.Annotations[core.GrantAnnotation]; ok {
		if asked, err = parse(text, "annotation"); err != nil {
			return nil, nil, err
		}
	}
	if wish == nil && asked == nil {
		asked = &grant.Document{}
	}
	allowed, err := r.o.Policy.For(document.Subject{Owner: string(c.Identity.Owner), Namespace: c.Identity.Namespace, Image: c.Identity.Image})
	if err != nil { // of any class: it is the node's fault, not the request's
		return nil, nil, fmt.Errorf("%v; no program with grants can start until it is mended: %w", err, errdefs.ErrFailedPrecondition) //nolint:errorlint // one class only
	}
	doc, denied := grant.Decide(wish, asked, allowed)
	return doc, denied, nil
}

// accepted returns tell with the program's grants added to the kernel's confinement.
func accepted(tell func(core.Confinement), r *grant.Resolved, denied []grant.Denied) func(core.Confinement) {
	if tell == nil || r == nil {
		return tell
	}
	return func(k core.Confinement) {
		for _, d := range r.Descriptors {
			k.Accepted = append(k.Accepted, core.GrantAccepted{Descriptor: d.Number, At: d.Name, Grant: d.Grant.String()})
		}
		for _, d := range denied {
			k.Denied = append(k.Denied, core.GrantDenied{At: d.Path, Position: d.Pos.String(), Asked: d.Asked, Given: d.Given})
		}
		for _, e := range r.Environment {
			name, _, _ := strings.Cut(e, "=")
			k.Environment = append(k.Environment, name)
		}
		k.Shutdown = r.Has(grant.Shutdown)
		tell(k)
	}
}
