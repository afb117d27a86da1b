package underway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnAttendedStepEndsAfterItsCaller, and not with it: a step that works is completed.
func TestAnAttendedStepEndsAfterItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the caller has gone")
		caller, leave := context.WithCancelCause(t.Context())
		cleanup, end := context.WithTimeout(Detach(caller), time.Minute)
		defer end()
		step, done := Attend(cleanup)
		defer done()
		leave(gone)
		<-time.After(callerGrace - time.Millisecond)
		synctest.Wait()
		if step.Err() != nil || cleanup.Err() != nil {
			t.Fatalf("before the grace has passed: step %v, cleanup %v", step.Err(), cleanup.Err())
		}
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		if !errors.Is(context.Cause(step), gone) || cleanup.Err() != nil {
			t.Errorf("after it: step %v, cleanup %v", context.Cause(step), cleanup.Err())
		}
		alone, done := Attend(t.Context()) // of no caller, as in a recovery
		if alone.Err() != nil {
			t.Error(alone.Err())
		}
		done()
		if alone.Err() == nil {
			t.Error("it does not end with its step")
		}
	})
}
