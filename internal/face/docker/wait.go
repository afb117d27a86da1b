package docker

import (
	"context"
	"net/http"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/face/docker/view"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// waited is the answer to a wait.
type waited struct {
	StatusCode int
	Error      *waitError `json:",omitempty"`
}

type waitError struct{ Message string }

// wait sends the header when it is registered, because clients start the container after it.
func (f *Face) wait(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	condition := r.Get("condition")
	if r.API.Before("1.30") {
		condition = solo.NotRunning
	}
	switch condition {
	case "", solo.NotRunning, solo.NextExit, solo.Removed:
	default:
		return invalid.Errorf("invalid condition: %q", condition)
	}
	since, err := f.own.LastSeq(ctx)
	if err != nil {
		return err
	}
	c, err := f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	wait := f.ended(c, since, condition)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	answer := waited{}
	code, err := wait(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the client has left
		}
		answer.Error = &waitError{dockerhttp.Text(err)}
	}
	answer.StatusCode = code
	return dockerhttp.WriteJSON(w, answer)
}

// ended returns a function that waits for the condition of a wait, and returns the exit code.
func (f *Face) ended(c core.Container, since uint64, condition string) func(context.Context) (int, error) {
	if condition == "" || condition == solo.NotRunning {
		if !c.Restarting() && !c.State.Live() {
			code := view.ExitCode(&c)
			return func(context.Context) (int, error) { return code, nil }
		}
		condition = solo.NextExit
		if !c.Restarting() {
			join := f.own.JoinWait(core.Ref{Container: c.ID})
			return func(ctx context.Context) (int, error) {
				a, err := join(ctx)
				return a.Exit.Status(), err
			}
		}
	}
	return func(ctx context.Context) (int, error) {
		a, err := solo.NextEnd(ctx, f.own, c, since, condition == solo.Removed)
		if err != nil && errdefs.IsNotFound(err) {
			return 0, noSuchContainer(string(c.ID))
		}
		if err != nil || a == nil {
			return 0, err
		}
		return a.Exit.Status(), nil
	}
}
