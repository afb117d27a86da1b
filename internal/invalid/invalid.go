// Package invalid makes errors about invalid requests.
//
// It is a leaf and knows no protocol. Start at Errorf.
package invalid

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Errorf is fmt.Errorf with the class InvalidArgument, whose name ends the text.
func Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

// Plainf is Errorf without the class's name in the text, for texts that a protocol prescribes.
func Plainf(format string, args ...any) error {
	return plain{fmt.Errorf(format, args...)}
}

type plain struct{ error }

// Unwrap returns the cause and the class.
func (p plain) Unwrap() []error { return []error{p.error, errdefs.ErrInvalidArgument} }
