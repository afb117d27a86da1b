package network_test

import (
	"os"
	"testing"

	"github.com/longshore/longshore/internal/network/names"
)

// TestMain lets the test binary be the name server of sandboxes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == names.Arg {
		os.Exit(names.Main())
	}
	os.Exit(m.Run())
}
