package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// exactArgs wants n arguments, which what names.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return &usageError{fmt.Errorf("%s is needed, nothing else: got %d arguments", what, len(args))}
		}
		return nil
	}
}

// minArgs wants n arguments or more, which what names.
func minArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return &usageError{fmt.Errorf("%s is needed", what)}
		}
		return nil
	}
}

// noArgs wants none.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// maxArgs wants at most n.
func maxArgs(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return &usageError{fmt.Errorf("unexpected argument %q", args[n])}
		}
		return nil
	}
}
