package composefile

import (
	"strings"
	"testing"
)

// endless is a file without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestStandardInputIsBounded checks that a file without an end is refused.
func TestStandardInputIsBounded(t *testing.T) {
	if _, err := bounded(endless{}); err == nil || !strings.Contains(err.Error(), "too many for a Compose file") {
		t.Errorf("got %v", err)
	}
	if text, err := bounded(strings.NewReader("services: {}")); string(text) != "services: {}" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}
