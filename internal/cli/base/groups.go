package base

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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
	if why := missingCommands()[strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "longshore ")]; why != "" {
		return &UsageError{Err: errors.New(why)}
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

// missingCommands maps commands of other tools that Longshore does not have to the reason.
func missingCommands() map[string]string {
	const build = "Longshore builds no images: use buildah, BuildKit or podman build, and import or pull the result"
	return map[string]string{
		"search":      "there is no search: a registry's own web site lists its images",
		"build":       build,
		"image build": build,
		"buildx":      build,
		"compose":     "Longshore runs no Compose files: its hub does, see longshore-hub apply",
		"service":     "services belong to a Swarm's managers, or to Longshore's hub: this is a node",
		"stack":       "stacks belong to a Swarm's managers, or to Longshore's hub: this is a node",
		"node":        "nodes belong to a Swarm's managers, or to Longshore's hub: this is one of them",
		"pod":         "there are no pods by this name: see longshore sandboxes",
		"machine":     "there is no machine to manage: the agent runs on this one",
		"checkpoint":  "containers cannot be checkpointed",
		"context":     "there are no contexts: --socket and --guest name another agent",
		"plugin":      "there are no plugins of this kind",
		"trust":       "a policy decides which images may run: see docs/guide/image-policy.md",
		"manifest":    "manifests are made where images are built",
		"secret":      "secrets belong to a Swarm's managers, or to Longshore's hub",
	}
}
