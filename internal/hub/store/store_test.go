package store_test

import (
	"testing"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestTheSuite: the database of tests is one that the store can be tested with.
func TestTheSuite(t *testing.T) {
	t.Parallel()
	storetest.Suite(t, func(*testing.T) store.Opener { return storetest.NewMemory().Open })
}
