package present

import (
	"encoding/json"
	"fmt"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Step is one step of an image's history.
type Step struct {
	imagespec.History
	Bytes int64
	ID    string // of the image, for its last step
}

// History returns the steps of an image's record, the newest first.
func History(record []byte) ([]Step, error) {
	var img struct {
		ID     string          `json:"id"`
		Layers []int64         `json:"layers"`
		Config imagespec.Image `json:"config"`
	}
	if err := json.Unmarshal(record, &img); err != nil {
		return nil, fmt.Errorf("read the image's record: %w", err)
	}
	var steps []Step
	layers := img.Layers
	for _, h := range img.Config.History {
		s := Step{History: h}
		if !h.EmptyLayer && len(layers) > 0 {
			s.Bytes, layers = layers[0], layers[1:]
		}
		steps = append([]Step{s}, steps...)
	}
	for _, n := range layers { // an image need not have a history
		steps = append([]Step{{Bytes: n, History: imagespec.History{CreatedBy: "", Comment: "no history"}}}, steps...)
	}
	if len(steps) > 0 {
		steps[0].ID = img.ID
	}
	return steps, nil
}
