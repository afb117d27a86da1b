package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDirectoriesAreClosed: a directory of the agent is created closed, or closed if it exists;
// one into which others may have put something is refused.
func TestDirectoriesAreClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		mode    os.FileMode // the existing directory's; 0 is none
		content bool
		refused bool
		want    os.FileMode
	}{
		"new":                          {want: 0o700},
		"as it once was":               {mode: 0o711, content: true, want: 0o700},
		"as many are":                  {mode: 0o755, content: true, want: 0o700},
		"closed":                       {mode: 0o700, content: true, want: 0o700},
		"a new tmpfs":                  {mode: 0o777 | os.ModeSticky, want: 0o700},
		"somewhere where others write": {mode: 0o777 | os.ModeSticky, content: true, refused: true, want: 0o777},
		"a group's":                    {mode: 0o770, content: true, refused: true, want: 0o770},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "above", "dir")
			if tc.mode != 0 {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, tc.mode); err != nil {
					t.Fatal(err)
				}
			}
			if tc.content {
				if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := private(dir); (err != nil) != tc.refused {
				t.Errorf("%v", err)
			}
			if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != tc.want {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
		})
	}
	if err := private(os.DevNull); err == nil {
		t.Error("a file was taken")
	}
}
