package base

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/foreign"
	"github.com/longshore/longshore/internal/cli/present"
)

// GroupOf returns a command that only has other commands.
func GroupOf(name, summary string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: summary, Args: cobra.ArbitraryArgs, RunE: NeedsCommand}
	cmd.AddCommand(commands...)
	return cmd
}

// NeedsCommand runs a command that only has subcommands: it prints its help, or an error for an
// unknown subcommand.
func NeedsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if why, ok := foreign.Command(strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "longshore ")); ok {
		return &UsageError{Err: errors.New(why.Text)}
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
	}
	if near := present.Nearest(args[0], known); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	}
	return &UsageError{Err: errors.New(text)}
}
