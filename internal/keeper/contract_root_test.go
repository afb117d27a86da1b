package keeper_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestContract(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		keepertest.Run(t, func(t *testing.T) keepertest.Harness {
			e := newEnv(t)
			return keepertest.Harness{
				Supervisor: e.c,
				Start: func(ctx context.Context, ref core.Ref, p keepertest.Program, stdio core.IO, attach *core.StreamOptions) (core.Launched, error) {
					var s strings.Builder
					fmt.Fprintf(&s, "printf %%s '%s'; printf %%s '%s' >&2; ", p.Stdout, p.Stderr)
					if p.Echo {
						s.WriteString("cat; ")
					}
					if p.Wait {
						s.WriteString("sleep 1000; ")
					}
					fmt.Fprintf(&s, "exit %d", p.Code)
					l := e.shell(string(ref.Container), s.String())
					l.Ref, l.IO, l.Attach = ref, stdio, attach
					return e.c.LaunchCommand(ctx, l)
				},
			}
		})
	})
}
