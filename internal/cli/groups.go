package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

func newContainerGroup(a *app) *cobra.Command {
	ls := newPs(a)
	ls.Use, ls.Aliases = "ls", []string{"list", "ps"}
	cp := newCp(a)
	cp.Example = strings.ReplaceAll(cp.Example, "longshore cp", "longshore container cp")
	return base.GroupOf("container", "Manage containers, with the command names of other tools",
		ls, newRun(a), newCreate(a), newStart(a), newStop(a), newRestart(a), newKill(a), newPause(a), newResume(a), newRename(a), newUpdate(a), newRm(a), newWait(a),
		newExec(a), newAttach(a), cp, newDiff(a), newCommit(a), newLogs(a), newTop(a), newStats(a), newPort(a),
		inspectOf(a, "container", "CONTAINER...", "Show everything about containers as JSON", "a container"),
		pruneOf(a, pruning{containers: true}, "Remove ended containers"))
}

func newImageGroup(a *app) *cobra.Command {
	ls, rm := newImages(a), newRmi(a)
	ls.Use, ls.Aliases = "ls [NAME]", []string{"list"}
	rm.Use, rm.Aliases = "rm IMAGE...", []string{"remove"}
	return base.GroupOf("image", "Manage images, with the command names of other tools",
		ls, newPull(a), newPush(a), newTag(a), rm, newImport(a), newExport(a), newHistory(a),
		inspectOf(a, "image", "IMAGE...", "Show everything about images as JSON", "an image"),
		pruneOf(a, pruning{images: true}, "Remove images without a name that no container uses"))
}

// flagError adds a similar flag's name to the error about an unknown flag.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return base.NeedsCommand(cmd, words) // the flag belongs to an unknown command
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := present.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, near)
		}
	}
	return &base.UsageError{Err: err}
}
