package logs_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

func TestNumberedFilesAreReadUpwards(t *testing.T) {
	dir := t.TempDir()
	sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(dir, "web.stdout.0"), MaxFiles: 3, Numbered: true}
	var got []string
	read := func(e logs.Entry) error {
		got = append(got, show(e))
		return nil
	}
	if err := logs.Read(t.Context(), sink, logs.Options{}, read); err != nil || got != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
	for name, text := range map[string]string{"web.stdout.9": "nine\n", "web.stdout.10": "ten\n", "web.stdout.11": "eleven\n", "web.stderr.12": "other\n", "web.stdout.x": "none\n"} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := logs.Read(t.Context(), sink, logs.Options{}, read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{":nine", ":ten", ":eleven"}, got); diff != "" {
		t.Error(diff)
	}
	if tail, err := logs.Tail(sink, 5); err != nil || len(tail) != 1 || tail[0] != "eleven" {
		t.Errorf("tail %q, %v", tail, err)
	}
}
