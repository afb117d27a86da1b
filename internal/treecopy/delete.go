package treecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/longshore/longshore/internal/beneath"
)

// Delete removes files and trees in a root. Missing ones are no error. Its paths may come from an attacker: they are resolved as
// those of a process with root as its root directory.
func Delete(root *os.File, paths []string) error {
	for _, p := range paths {
		p = path.Clean("/" + p)
		if p == "/" {
			continue
		}
		in, err := beneath.RootIn(root, path.Dir(p))
		if err == nil {
			err = in.RemoveAll(path.Base(p))
			_ = in.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete %q: %w", p, classed(err))
		}
	}
	return nil
}
