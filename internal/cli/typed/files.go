package typed

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Files returns the lines of the files of a flag, in their order: NAME=value or NAME each. Empty lines and comments are left
// out.
func Files(flag string, names []string) (list []string, err error) {
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			line := strings.TrimLeft(strings.TrimPrefix(lines.Text(), "\ufeff"), " \t")
			if line == "" || line[0] == '#' {
				continue
			}
			if key, _, _ := strings.Cut(line, "="); key == "" || strings.ContainsAny(key, " \t") {
				_ = file.Close()
				return nil, fmt.Errorf("%s %s, line %d: %q is not NAME=value", flag, name, n, key)
			}
			list = append(list, line)
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, name, err)
		}
	}
	return list, nil
}
