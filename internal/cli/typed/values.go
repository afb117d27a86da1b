package typed

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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
func Bytes(s string) (uint64, error) {
	t := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), "b")
	t = strings.TrimSuffix(t, "i")
	shift := 0
	for unit, n := range map[string]int{"k": 10, "m": 20, "g": 30, "t": 40} {
		if cut, ok := strings.CutSuffix(t, unit); ok {
			t, shift = cut, n
			break
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*float64(uint64(1)<<shift) >= 1<<63 {
		return 0, fmt.Errorf("%q is not a size such as 512, 64k, 64m or 2g", s)
	}
	return uint64(f * float64(uint64(1)<<shift)), nil
}
