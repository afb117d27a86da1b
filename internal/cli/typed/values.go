package typed

import (
	"fmt"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Env parses environment variables, NAME=value or NAME, which has the value that getenv returns.
func Env(list []string, getenv func(string) string) ([]string, error) {
	var out []string
	for _, e := range list {
		name, _, ok := strings.Cut(e, "=")
		if name == "" {
			return nil, fmt.Errorf("--env %q: a name is needed", e)
		}
		if !ok {
			e = name + "=" + getenv(name)
		}
		out = append(out, e)
	}
	return out, nil
}

// Labels parses NAME=value, or NAME.
func Labels(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // no labels is not an error
	}
	out := map[string]string{}
	for _, l := range list {
		name, value, _ := strings.Cut(l, "=")
		if name == "" {
			return nil, fmt.Errorf("label %q: a name is needed", l)
		}
		out[name] = value
	}
	return out, nil
}

// Bytes parses 512, 64k, 64m, 2g, 1t, with or without b. The units are powers of 1024, as in
// comparable tools.
func Bytes(s string) (uint64, error) { return core.Bytes(s) }
