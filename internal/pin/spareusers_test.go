package pin

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// TestSandboxesInTurnFindUserNamespacesReady: sandboxes that start and end one after the other, each with the next of the four ranges
// that the engine gives in turn, wait for namespaces in the first turn only.
func TestSandboxesInTurnFindUserNamespacesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		s := &spareUsers{make: func(context.Context, []specs.LinuxIDMapping, []specs.LinuxIDMapping, ...specs.LinuxNamespaceType) ([]*os.File, error) {
			made.Add(1)
			return []*os.File{os.NewFile(^uintptr(0), "user")}, nil
		}}
		defer s.close()
		const ranges, turns = 4, 5
		for n := range ranges * turns {
			ids := core.UserRange(uint32(1+n%ranges) * core.UserIDs)
			m := mapped{ids, ids, []specs.LinuxNamespaceType{specs.UserNamespace}}
			if s.take(m) == nil && n >= ranges {
				t.Errorf("sandbox %d has no namespaces ready", n)
			}
			id := core.ID(fmt.Sprint(n))
			s.began(id, m)
			<-time.After(spareDelay) // of the fake clock
			s.ended(id)
			<-time.After(spareDelay)
			synctest.Wait()
		}
		// One for each sandbox, and in the first turn the one after each.
		if made := made.Load(); made > ranges*turns+ranges {
			t.Errorf("%d sets were made for %d sandboxes", made, ranges*turns)
		}
	})
}
