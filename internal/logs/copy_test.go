package logs_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

// TestCopyKeepsEveryLineInOrder, of both streams, however they are combined into pieces.
func TestCopyKeepsEveryLineInOrder(t *testing.T) {
	const lines = 20_000
	var log, want strings.Builder
	for i := range lines {
		text := fmt.Sprintf("line %d", i)
		log.WriteString(cri(i%60, "stdout", "F", text))
		want.WriteString(text + "\n")
	}
	log.WriteString(cri(1, "stderr", "F", "e") + cri(2, "stdout", "P", "no ") + cri(3, "stdout", "F", "end"))
	sink := core.Sink{Format: core.FormatCRI, Path: filepath.Join(t.TempDir(), "log")}
	write(t, sink.Path, log.String())
	var got []string
	err := logs.Copy(t.Context(), sink, logs.Options{}, func(stderr bool, data []byte) error {
		if stderr {
			got = append(got, "stderr")
		}
		got = append(got, string(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want.WriteString("stderre\nno end\n")
	if diff := cmp.Diff(want.String(), strings.Join(got, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCopyEndsWithItsReader although much output is left.
func TestCopyEndsWithItsReader(t *testing.T) {
	sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(t.TempDir(), "log")}
	write(t, sink.Path, strings.Repeat(strings.Repeat("x", 100)+"\n", 40_000))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := logs.Copy(ctx, sink, logs.Options{Follow: true}, func(bool, []byte) error { return gone })
	if !errors.Is(err, gone) {
		t.Errorf("err = %v", err)
	}
}
