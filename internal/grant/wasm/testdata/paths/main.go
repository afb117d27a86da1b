// Command paths uses Go's functions that open a directory and then name what is below it, in each directory of its arguments. It prints what
// failed.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
)

func main() {
	fd := os.NewFile(1, "stdout")
	for _, dir := range os.Args[1:] {
		if err := use(dir); err != nil {
			_, _ = fmt.Fprintf(fd, "%s: %v\n", dir, err)
		}
	}
	_, _ = fmt.Fprintln(fd, "done")
}

func use(dir string) error {
	if err := os.MkdirAll(path.Join(dir, "a/b/c"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path.Join(dir, "a/b/file"), []byte("text"), 0o600); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if text, err := root.ReadFile("a/b/file"); err != nil || string(text) != "text" {
		return fmt.Errorf("read %q: %w", text, err)
	}
	if err := root.Mkdir("d", 0o700); err != nil {
		return err
	}
	if err := root.WriteFile("d/file", []byte("more"), 0o600); err != nil {
		return err
	}
	if err := root.Rename("d/file", "moved"); err != nil {
		return err
	}
	if err := root.Symlink("moved", "link"); err != nil {
		return err
	}
	if _, err := root.Stat("link"); err != nil {
		return err
	}
	names := 0
	if err := fs.WalkDir(root.FS(), ".", func(_ string, _ fs.DirEntry, err error) error { names++; return err }); err != nil {
		return err
	}
	if names < 8 {
		return fmt.Errorf("it has %d names", names)
	}
	if err := root.RemoveAll("d"); err != nil {
		return err
	}
	for _, name := range []string{"a", "moved", "link"} {
		if err := os.RemoveAll(path.Join(dir, name)); err != nil {
			return err
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 1 { // a directory of the test's
		return fmt.Errorf("%v is left: %w", left, err)
	}
	return nil
}
