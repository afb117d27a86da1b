package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// exactArgs requires exactly n arguments; what names them.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return &usageError{fmt.Errorf("%s is needed, nothing else: got %d arguments", what, len(args))}
		}
		return nil
	}
}

// minArgs requires at least n arguments; what names them.
func minArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return &usageError{fmt.Errorf("%s is needed", what)}
		}
		return nil
	}
}

// noArgs allows no arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// oneArg allows at most one argument.
func oneArg(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[1])}
	}
	return nil
}
