package engine

import (
	"context"
	"errors"
	"fmt"
)

// undoStack holds the functions that undo the finished stages of a verb. The zero value is
// empty and ready to use. It is not safe for concurrent use.
type undoStack struct {
	steps []undoStep
}

type undoStep struct {
	name string
	back func(context.Context) error
}

// add pushes one function; name appears in the text of its error.
func (s *undoStack) add(name string, back func(context.Context) error) {
	s.steps = append(s.steps, undoStep{name, back})
}

// unwind calls all functions, the last first, and leaves the stack empty. It continues
// after an error and returns all errors joined.
func (s *undoStack) unwind(ctx context.Context) error {
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].back(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.steps[i].name, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

// release drops all functions: the operation succeeded.
func (s *undoStack) release() { s.steps = nil }
