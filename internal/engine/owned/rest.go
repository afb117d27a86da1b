package owned

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Rest completes a container that has no process until it is renewed, and writes its spec, which a runtime would write.
func Rest(c *core.Container, spec *specs.Spec, by *core.StopRequest) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	c.Resting, c.Main.Finished, c.Main.StopRequest = true, by.At, by
	c.Main.Autopsy = &core.Autopsy{Exit: core.Exit{At: by.At}, StopRequest: by, Verdict: "it has not been started yet"}
	return os.WriteFile(filepath.Join(c.Bundle, "config.json"), text, 0o600)
}
