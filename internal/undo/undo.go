// Package undo is the way back of an operation that goes forward in stages:
// every stage pushes what takes it back, and a failure unwinds the stack in
// reverse. It knows nothing of what it undoes. Start at Stack.
package undo

import (
	"context"
	"errors"
	"fmt"
)

// Stack holds what takes the finished stages back. The zero Stack is empty and
// ready. It is not safe for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	name string
	back func(context.Context) error
}

// Add pushes one way back, named for the error text.
func (s *Stack) Add(name string, back func(context.Context) error) {
	s.steps = append(s.steps, step{name, back})
}

// Unwind takes everything back, the last first, and leaves the stack empty. It
// goes on after an error and returns all of them joined.
func (s *Stack) Unwind(ctx context.Context) error {
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].back(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", s.steps[i].name, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

// Release forgets every way back: the operation went through.
func (s *Stack) Release() { s.steps = nil }
