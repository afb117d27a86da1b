package keepertest_test

import (
	"testing"

	"github.com/longshore/longshore/internal/keeper/keepertest"
)

func TestHolderInMemory(t *testing.T) {
	keepertest.RunHolder(t, keepertest.NewHolder(t), nil)
	keepertest.RunHolderLimits(t, keepertest.NewHolder(t))
}
