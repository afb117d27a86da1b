package enginetest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/internal/core"
)

// Bundles is the fake Runtime that also writes the bundle's config.json, as core.Runtime
// promises, for code that reads it.
type Bundles struct{ *Runtime }

// Create writes the spec and creates the container.
func (b Bundles) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	raw, err := json.Marshal(c.Spec)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(c.Bundle, "config.json"), raw, 0o600); err != nil {
		return 0, err
	}
	return b.Runtime.Create(ctx, c)
}
