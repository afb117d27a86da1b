package stages

import (
	"context"
	"errors"
	"fmt"
)

// Undo holds the functions that undo the finished stages of a verb. The zero value is
// empty and ready to use. It is not safe for concurrent use.
type Undo struct {
	steps []undoStep
}

type undoStep struct {
	name string
	back func(context.Context) error
}

// Add pushes one function; name appears in the text of its error.
func (s *Undo) Add(name string, back func(context.Context) error) {
	s.steps = append(s.steps, undoStep{name, back})
}

// Unwind calls all functions, the last first, and leaves the stack empty. It continues
// after an error and returns all errors joined.
func (s *Undo) Unwind(ctx context.Context) error {
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].back(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.steps[i].name, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

// Release drops all functions: the operation succeeded.
func (s *Undo) Release() { s.steps = nil }
