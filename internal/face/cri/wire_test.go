package cri

import (
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestNumbers compares the API's numbers with those of cri-api v0.38.0-beta.0.
func TestNumbers(t *testing.T) {
	wiretest.Compare(t, "testdata/numbers.txt", 649, v1.File_cri_v1_runtime_proto)
}
