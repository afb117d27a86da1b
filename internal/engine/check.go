package engine

import "context"

// Violation is one way in which records and node do not agree.
type Violation struct{ Kind, Object, Detail string }

func (v Violation) String() string { return v.Kind + " " + v.Object + ": " + v.Detail }

// Check compares.
func (e *Engine) Check(context.Context) ([]Violation, error) { return nil, nil }
