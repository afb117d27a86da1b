package logs_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

// TestPlainRecords: lines without a tag are whole ones, with any text.
func TestPlainRecords(t *testing.T) {
	sink := core.Sink{Format: core.FormatCRIPlain, Path: filepath.Join(t.TempDir(), "log")}
	write(t, sink.Path, "2017-01-01T00:00:01.000000000Z stdout F one\n2017-01-01T00:00:02.000000000Z stderr \nnonsense\n2017-01-01T00:00:03.000000000Z stdout P three\n")
	if got, want := read(t, sink, logs.Options{}), []string{"stdout:F one", "stderr:", "stdout:P three"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, err := logs.Tail(sink, 2); err != nil || !slices.Equal(got, []string{"", "P three"}) {
		t.Errorf("%q, %v", got, err)
	}
}
