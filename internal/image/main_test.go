package image_test

import (
	"os"
	"testing"

	"github.com/longshore/longshore/internal/image"
)

// TestMain makes the test binary its own image worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == image.WorkerArg {
		os.Exit(image.WorkerMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}
