package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// fakeRuntime returns err for every create.
type fakeRuntime struct {
	core.Runtime
	name string
	err  error
	seen string // the ociVersion that it got
}

func (f *fakeRuntime) Name() string { return f.name }

func (f *fakeRuntime) Create(_ context.Context, c core.RuntimeCreate) (int, error) {
	if f.seen = c.Spec.Version; f.err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, f.err)
	}
	return 7, nil
}

func TestFallback(t *testing.T) {
	refusal := func(field string) error {
		return fmt.Errorf("%s: not done by the runtime: %w", field, errdefs.ErrNotImplemented)
	}
	boom := errors.New("boom")
	for _, c := range []struct {
		name     string
		first    error
		others   []error // the errors of the runtimes b and c
		any      bool
		by       string // which runtime created it
		warnings []string
		err      error
		text     string
	}{
		{name: "the first does it", by: "a", any: true, others: []error{nil, nil}},
		{
			name: "the next does it", first: refusal("linux.x"), others: []error{nil, nil}, any: true, by: "b",
			warnings: []string{"linux.x: not done by the runtime; run by b"},
		},
		{
			name: "the last does it", first: refusal("linux.x"), others: []error{refusal("vm"), nil}, any: true, by: "c",
			warnings: []string{"linux.x: not done by the runtime; run by c", "vm: not done by the runtime; run by c"},
		},
		{name: "a named one stays", first: refusal("linux.x"), others: []error{nil, nil}, err: errdefs.ErrNotImplemented, text: "linux.x"},
		{name: "nobody does it", first: refusal("linux.x"), others: []error{refusal("vm")}, any: true, err: errdefs.ErrNotImplemented, text: "vm"},
		{name: "another error ends it", first: boom, others: []error{nil}, any: true, err: boom, text: "boom"},
		{name: "also later", first: refusal("linux.x"), others: []error{boom, nil}, any: true, err: boom, text: "boom"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := []*fakeRuntime{{name: "a", err: c.first}}
			for i, err := range c.others {
				all = append(all, &fakeRuntime{name: string(rune('b' + i)), err: err})
			}
			by := "a"
			try := Runtimes{
				First: all[0], Any: c.any,
				Version: func(_ context.Context, rt core.Runtime) string { return "of " + rt.Name() },
				Take:    func(rt core.Runtime) error { by = rt.Name(); return nil },
			}
			for _, rt := range all {
				try.Others = append(try.Others, rt)
			}
			pid, warnings, err := try.Create(t.Context(), core.RuntimeCreate{ID: "id", Spec: &specs.Spec{Version: "of a"}})
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("error %v, want %v with %q", err, c.err, c.text)
				}
				return
			}
			if err != nil || pid != 7 || by != c.by || !slices.Equal(warnings, c.warnings) {
				t.Errorf("pid %d by %s, %q, %v", pid, by, warnings, err)
			}
			for _, rt := range all {
				if rt.seen != "" && rt.seen != "of "+rt.name {
					t.Errorf("%s was asked with the version %s", rt.name, rt.seen)
				}
			}
		})
	}
}
