package ocispec

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Granted is a request for a program that may hold only its grants.
type Granted struct {
	// Document is the request's document, if Asked.
	Document string
	Asked    bool
	// Runtime is the one that the request names; "" if it names none.
	Runtime string
	// Image may carry a document of its own, and nil is none.
	Image    *core.Image
	Identity core.Identity
	// Secrets are the container paths of the orchestrator's mounts with secrets.
	Secrets []string
}

// Apply makes c's program one that holds only its grants: because its request has a document or names the runtime for
// it, or, if the request names no runtime, because its image carries a document or is a WebAssembly module.
func (g Granted) Apply(c *core.ContainerConfig) {
	wish, wasm := "", false
	if g.Image != nil {
		wish, wasm = g.Image.Wish(), g.Image.Wasm
	}
	if !g.Asked && g.Runtime != core.GrantHandler && (g.Runtime != "" || wish == "" && !wasm) {
		return
	}
	c.Runtime, c.Identity, c.Grants = core.GrantHandler, g.Identity, core.GrantAsk{Wish: wish, Secrets: g.Secrets}
	inner := c.Spec
	c.Spec = func(ctx context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		s, data, err := inner(ctx, r)
		if err == nil && g.Asked {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			s.Annotations[core.GrantAnnotation] = g.Document
		}
		return s, data, err
	}
}
