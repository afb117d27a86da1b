package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

// TestARotationAmidALookAtTheFiles: when the writer rotates at any moment while the reader opens
// one file after the other, each line is read once, in order.
func TestARotationAmidALookAtTheFiles(t *testing.T) {
	const maxFiles = 6
	for rotations := 1; rotations <= 3; rotations++ {
		for at := range 3 * maxFiles {
			sink := core.Sink{Format: core.FormatRaw, Path: filepath.Join(t.TempDir(), "log"), MaxFiles: maxFiles}
			var want []string
			appendLine := func() {
				line := fmt.Sprintf("r%d", len(want))
				want = append(want, line)
				f, err := os.OpenFile(sink.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.WriteString(line + "\n")
				if err := errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
			}
			rotate := func() { // as the keeper does
				for i := maxFiles - 2; i > 0; i-- {
					err := os.Rename(fmt.Sprintf("%s.%d", sink.Path, i), fmt.Sprintf("%s.%d", sink.Path, i+1))
					if err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
				}
				if err := os.Rename(sink.Path, sink.Path+".1"); err != nil {
					t.Fatal(err)
				}
				appendLine()
			}
			appendLine()
			rotate()
			var got []string
			opened := 0
			r := &reader{sink: sink, fn: func(e Entry) error { got = append(got, string(e.Text)); return nil }}
			r.open = func(sink core.Sink, path string) (*os.File, error) {
				if opened == at {
					for range rotations {
						rotate()
					}
				}
				opened++
				return openRegular(sink, path)
			}
			if err := r.read(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.close()
			// A rotation after the last file has been opened does not matter.
			if d := cmp.Diff(want[:len(got)], got); d != "" || len(got) < 2 || opened > at && at < maxFiles && !slices.Equal(want, got) {
				t.Errorf("%d rotations before file %d is opened: wrote %v, read %v", rotations, at, want, got)
			}
		}
	}
}
