package ocispec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// BundleProcess is the process of a bundle's spec, as it was started.
func BundleProcess(bundle string) (*specs.Process, error) {
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	var spec struct {
		Process *specs.Process `json:"process"` // all else is passed over
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("read its spec: %w: %w", err, errdefs.ErrDataLoss)
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("read its spec: no process in it: %w", errdefs.ErrDataLoss)
	}
	return spec.Process, nil
}
