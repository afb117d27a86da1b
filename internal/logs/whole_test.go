package logs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

func TestWholeTellsTheOutputOnce(t *testing.T) {
	both := core.Sink{Path: "/both", Stdout: true, Stderr: true}
	out := core.Sink{Path: "/out", Stdout: true}
	errs := core.Sink{Path: "/err", Stderr: true}
	for name, c := range map[string]struct{ in, want []core.Sink }{
		"one":           {[]core.Sink{out, both}, []core.Sink{both}},
		"one of each":   {[]core.Sink{out, errs}, []core.Sink{out, errs}},
		"the first two": {[]core.Sink{out, errs, out, errs}, []core.Sink{out, errs}},
		"half":          {[]core.Sink{errs}, []core.Sink{errs}},
		"none":          {nil, nil},
	} {
		if diff := cmp.Diff(c.want, logs.Whole(c.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestManyFollowers: more logs are followed at once than a user may have inotify instances, by
// readers of one file and of many, and each reader is woken for its own file.
func TestManyFollowers(t *testing.T) {
	dir := t.TempDir()
	const files, readers = 20, 20
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan string, files*readers)
	var wg sync.WaitGroup
	var begun sync.WaitGroup
	for i := range files {
		sink := core.Sink{Format: core.FormatCRI, Path: filepath.Join(dir, fmt.Sprintf("%02d.log", i)), MaxFiles: 2, Stdout: true, Stderr: true}
		for range readers {
			begun.Add(1)
			wg.Go(func() {
				err := logs.ReadWhole(ctx, []core.Sink{sink}, logs.Options{Follow: true, Begun: begun.Done}, func(e logs.Entry) error {
					got <- string(e.Text)
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("file %d: %v", i, err)
				}
			})
		}
	}
	begun.Wait()
	all := func(text string) {
		t.Helper()
		have := map[string]int{}
		for range files * readers {
			have[<-got]++
		}
		for i := range files {
			if n := have[fmt.Sprint(text, i)]; n != readers {
				t.Errorf("%s%d was read %d times", text, i, n)
			}
		}
	}
	for i := range files { // which appear after their readers
		write(t, filepath.Join(dir, fmt.Sprintf("%02d.log", i)), cri(1, "stdout", "F", fmt.Sprint("first", i)))
	}
	all("first")
	for i := range files {
		path := filepath.Join(dir, fmt.Sprintf("%02d.log", i))
		write(t, path, cri(2, "stderr", "F", fmt.Sprint("last", i)))
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		write(t, path, cri(3, "stdout", "F", fmt.Sprint("next", i)))
	}
	both := map[string]int{}
	for range 2 * files * readers {
		both[(<-got)[:4]]++
	}
	if both["last"] != files*readers || both["next"] != files*readers {
		t.Errorf("around a rotation: %v", both)
	}
	cancel()
	wg.Wait()
}
