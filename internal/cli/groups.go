package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/cli/present"
)

// groupOf returns a command that only has other commands.
func groupOf(name, summary string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: summary, Args: cobra.ArbitraryArgs, RunE: needsCommand}
	cmd.AddCommand(commands...)
	return cmd
}

// needsCommand is what a command does that only has others: it shows them, or says that the one
// that was asked for is none of them.
func needsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if why := elsewhere()[strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "longshore ")]; why != "" {
		return &usageError{errors.New(why)}
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
	return &usageError{errors.New(text)}
}

// elsewhere are commands that other tools have, and why there are none here.
func elsewhere() map[string]string {
	const build = "Longshore builds no images: use buildah, BuildKit or podman build, and import or pull the result"
	return map[string]string{
		"search":      "there is no search: a registry's own web site lists its images",
		"build":       build,
		"image build": build,
		"buildx":      build,
		"compose":     "Longshore runs no Compose files: its hub does, see longshore-hub deploy",
		"service":     "services belong to a Swarm's managers, or to Longshore's hub: this is a node",
		"stack":       "stacks belong to a Swarm's managers, or to Longshore's hub: this is a node",
		"node":        "nodes belong to a Swarm's managers, or to Longshore's hub: this is one of them",
		"pod":         "there are no pods by this name: see longshore sandboxes",
		"machine":     "there is no machine to manage: the agent runs on this one",
		"checkpoint":  "containers cannot be checkpointed",
		"context":     "there are no contexts: --socket and --guest name another agent",
		"plugin":      "there are no plugins of this kind",
		"trust":       "which images may run is the policy's affair: see docs/guide/image-policy.md",
		"manifest":    "manifests are made where images are built",
		"secret":      "secrets belong to a Swarm's managers, or to Longshore's hub",
	}
}

func newContainerGroup(a *app) *cobra.Command {
	ls := newPs(a)
	ls.Use, ls.Aliases = "ls", []string{"list", "ps"}
	cp := newCp(a)
	cp.Example = strings.ReplaceAll(cp.Example, "longshore cp", "longshore container cp")
	return groupOf("container", "Containers, by the names of commands that other tools have",
		ls, newRun(a), newCreate(a), newStart(a), newStop(a), newRestart(a), newKill(a), newPause(a), newResume(a), newRename(a), newUpdate(a), newRm(a), newWait(a),
		newExec(a), newAttach(a), cp, newLogs(a), newTop(a), newStats(a), newPort(a),
		inspectOf(a, "container", "CONTAINER...", "Show everything about containers as JSON", "a container"),
		pruneOf(a, pruning{containers: true}, "Remove the containers that have ended"))
}

func newImageGroup(a *app) *cobra.Command {
	ls, rm := newImages(a), newRmi(a)
	ls.Use, ls.Aliases = "ls [NAME]", []string{"list"}
	rm.Use, rm.Aliases = "rm IMAGE...", []string{"remove"}
	return groupOf("image", "Images, by the names of commands that other tools have",
		ls, newPull(a), newPush(a), newTag(a), rm, newImport(a), newExport(a), newHistory(a),
		inspectOf(a, "image", "IMAGE...", "Show everything about images as JSON", "an image"),
		pruneOf(a, pruning{images: true}, "Remove images without a name that no container uses"))
}

// flagError adds the flag that was perhaps meant to an error about an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := present.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, near)
		}
	}
	return &usageError{err}
}

// normalNames gives flags that other tools name otherwise the names that they have here.
func normalNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if known, ok := otherNames()[name]; ok {
		name = known
	}
	return pflag.NormalizedName(name)
}
