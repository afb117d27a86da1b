package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// ask is a request for an action.
type ask struct {
	Verb string `json:"verb"`
	ID   string `json:"id"`
	// Owner is the owner that the user has confirmed, for an object of another owner than the command line's.
	Owner string `json:"owner"`
}

// readAsk reads the body of a request for an action.
func readAsk(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return requestError{http.StatusBadRequest, "the request cannot be read: " + err.Error()}
	}
	return nil
}

// confirmed reports whether a container belongs to another owner than the command line. It requires the user's confirmation of that
// owner by name. The agent records actions on such containers as events, like those of --force.
func (s *Server) confirmed(ctx context.Context, id, owner string) (force bool, err error) {
	if id == "" || len(id) > maxName {
		return false, requestError{http.StatusBadRequest, "the request does not name a container"}
	}
	why, err := s.api.containers.Why(ctx, &longshorev1.WhyRequest{Name: id})
	if err != nil {
		return false, err
	}
	c := why.GetContainer()
	if c.GetId() != id { // no name or prefix of a page means another container
		return false, requestError{http.StatusNotFound, "there is no container with this ID"}
	}
	switch {
	case c.GetOwner() == string(core.OwnerCLI):
		return false, nil
	case owner != c.GetOwner():
		return false, requestError{http.StatusPreconditionRequired, fmt.Sprintf("%s belongs to %s, which may undo the action: confirm it with the owner's name", id[:min(len(id), 12)], c.GetOwner())}
	}
	return true, nil
}

// action stops, starts, pauses, resumes, puts to sleep or wakes a container.
func (s *Server) action(w http.ResponseWriter, r *http.Request) error {
	if !s.o.Actions {
		return errReadOnly
	}
	var a ask
	if err := readAsk(r, &a); err != nil {
		return err
	}
	ctx, c := r.Context(), s.api.containers
	verbs := map[string]func(force bool) error{
		"start": func(force bool) error {
			_, err := c.Start(ctx, &longshorev1.StartRequest{Name: a.ID, Force: force})
			return err
		},
		"stop": func(force bool) error {
			_, err := c.Stop(ctx, &longshorev1.StopRequest{Name: a.ID, Force: force})
			return err
		},
		"pause": func(force bool) error {
			_, err := c.Pause(ctx, &longshorev1.PauseRequest{Name: a.ID, Force: force})
			return err
		},
		"resume": func(force bool) error {
			_, err := c.Resume(ctx, &longshorev1.ResumeRequest{Name: a.ID, Force: force})
			return err
		},
		"sleep": func(force bool) error {
			_, err := c.Sleep(ctx, &longshorev1.SleepRequest{Name: a.ID, Force: force})
			return err
		},
		"wake": func(force bool) error {
			_, err := c.Wake(ctx, &longshorev1.WakeRequest{Name: a.ID, Force: force})
			return err
		},
	}
	act, ok := verbs[a.Verb]
	if !ok {
		return requestError{http.StatusBadRequest, fmt.Sprintf("there is no action %q", a.Verb)}
	}
	force, err := s.confirmed(ctx, a.ID, a.Owner)
	if err != nil {
		return err
	}
	if err := act(force); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
