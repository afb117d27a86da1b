package control

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

func TestReadableTellsTheOutputOnce(t *testing.T) {
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
		if diff := cmp.Diff(c.want, readable(c.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
