package image

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestAnImageThatIsRemovedMeanwhile: missing files are no damage after a removal.
func TestAnImageThatIsRemovedMeanwhile(t *testing.T) {
	m := digest.FromString("manifest")
	s := &Store{rec: &records{images: map[digest.Digest]*imageRecord{m: {}}}}
	damage := fmt.Errorf("read config: %w", errdefs.ErrDataLoss)
	if err := unlessRemoved(s, m, damage); !errdefs.IsDataLoss(err) {
		t.Errorf("while the image is there: %v", err)
	}
	delete(s.rec.images, m)
	if err := unlessRemoved(s, m, damage); !errdefs.IsNotFound(err) || errdefs.IsDataLoss(err) {
		t.Errorf("after its removal: %v", err)
	}
	if err := unlessRemoved(s, m, nil); err != nil {
		t.Errorf("a config that was read before the removal: %v", err)
	}
}
