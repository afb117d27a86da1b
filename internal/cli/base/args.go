package base

import (
	"fmt"

	"github.com/spf13/cobra"
)

// ExactArgs requires exactly n arguments. needed describes them in the error.
func ExactArgs(n int, needed string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return &UsageError{Err: fmt.Errorf("%s is needed and nothing else: got %d arguments", needed, len(args))}
		}
		return nil
	}
}

// MinArgs requires at least n arguments. needed describes them in the error.
func MinArgs(n int, needed string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return &UsageError{Err: fmt.Errorf("%s is needed", needed)}
		}
		return nil
	}
}

// NoArgs allows no arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &UsageError{Err: fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// OneArg allows at most one argument.
func OneArg(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return &UsageError{Err: fmt.Errorf("unexpected argument %q", args[1])}
	}
	return nil
}
