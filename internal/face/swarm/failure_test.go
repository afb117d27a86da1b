package swarm

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/csi"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
)

// TestAMissingPartOfAnAssignmentIsAWait, for a first start and for a restart; temporary errors are tried again, and
// all others fail the task.
func TestAMissingPartOfAnAssignmentIsAWait(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		want   stepper.Outcome
		reason bool
	}{
		"a secret that was not sent": {fmt.Errorf("secret: %w", errWaits), stepper.Wait, false},
		"a volume that is not there": {fmt.Errorf("volume: %w", csi.ErrWaits), stepper.Wait, true},
		"a network without keys":     {fmt.Errorf("overlay network back: %w", overlays.ErrWaits), stepper.Wait, true},
		"a registry that is down":    {fmt.Errorf("pull: %w", errdefs.ErrUnavailable), stepper.Retry, false},
		"a deadline":                 {fmt.Errorf("pull: %w", context.DeadlineExceeded), stepper.Retry, false},
		"a name that is not valid":   {fmt.Errorf("spec: %w", errdefs.ErrInvalidArgument), stepper.Failed, false},
		"an error without a class":   {errors.New("it failed"), stepper.Failed, false},
		"a wait that is unavailable": {fmt.Errorf("%w: %w", overlays.ErrWaits, errdefs.ErrUnavailable), stepper.Wait, true},
	} {
		r := failure(c.err)
		if r.outcome != c.want || (r.reason != "") != c.reason || (r.err != nil) != (c.want != stepper.Wait) {
			t.Errorf("%s: %s, reason %q, error %v; want %s", name, r.outcome, r.reason, r.err, c.want)
		}
	}
}
