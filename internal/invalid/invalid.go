// Package invalid makes the errors that refuse what a caller asked for.
//
// It is a leaf: it must not know any protocol. Start at Errorf.
package invalid

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Errorf is fmt.Errorf with the class InvalidArgument, which the text names at
// its end.
func Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// Plainf is Errorf with the text as it is given, for texts that a protocol sets
// word for word.
func Plainf(format string, args ...any) error {
	return plain{fmt.Errorf(format, args...)}
}

type plain struct{ error }

// Unwrap gives the cause and the class.
func (p plain) Unwrap() []error { return []error{p.error, errdefs.ErrInvalidArgument} }
