package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/cli/artifact"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/checkpoint"
	"github.com/longshore/longshore/internal/cli/foreign"
	"github.com/longshore/longshore/internal/cli/present"
)

func newContainerGroup(a *app) *cobra.Command {
	ls := newPs(a)
	ls.Use, ls.Aliases = "ls", []string{"list", "ps"}
	cp, rm := newCp(a), newRm(a)
	rm.Aliases = []string{"remove"}
	cp.Example = strings.ReplaceAll(cp.Example, "longshore cp", "longshore container cp")
	return base.GroupOf("container", "Manage containers, with the command names of other tools",
		ls, newRun(a), newCreate(a), newStart(a), newStop(a), newRestart(a), newKill(a), newPause(a), newResume(a), newSleep(a), newWake(a), checkpoint.New(a.App), checkpoint.NewRestore(a.App), newRename(a), newUpdate(a), rm, newWait(a),
		newExec(a), newAttach(a), cp, newDiff(a), newCommit(a), newLogs(a), newTop(a), newStats(a), newPort(a), newExportFiles(a),
		inspectOf(a, "container", "CONTAINER...", "Show everything about containers as JSON", "a container"),
		pruneOf(a, pruning{containers: true}, "Remove ended containers"))
}

func newImageGroup(a *app) *cobra.Command {
	ls, rm := newImages(a), newRmi(a)
	ls.Use, ls.Aliases = "ls [NAME]", []string{"list"}
	rm.Use, rm.Aliases = "rm IMAGE...", []string{"remove"}
	return base.GroupOf("image", "Manage images, with the command names of other tools",
		ls, newPull(a), newPush(a), newTag(a), rm, newImport(a), newLoad(a), newExport(a), newHistory(a),
		inspectOf(a, "image", "IMAGE...", "Show everything about images as JSON", "an image"),
		pruneOf(a, pruning{images: true}, "Remove images without a name that no container uses"))
}

func newArtifactGroup(a *app) *cobra.Command {
	ls, rm := newImages(a), newRmi(a)
	ls.Use, ls.Aliases, ls.Short, ls.Long = "ls [NAME]", []string{"list"}, "List the artifacts of every owner", ""
	run := ls.RunE
	ls.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cmd.Flags().Set("filter", "type=artifact"); err != nil {
			return err
		}
		return run(cmd, args)
	}
	rm.Use, rm.Aliases, rm.Short = "rm ARTIFACT...", []string{"remove"}, "Remove artifact names, or with an ID all names of the artifact"
	pull, push := newPull(a), newPush(a)
	pull.Use, pull.Short = "pull ARTIFACT", "Fetch an artifact from its registry"
	push.Short = "Send an artifact to a registry"
	return base.GroupOf("artifact", "Manage OCI artifacts, with the command names of podman", artifact.NewAdd(a.App), artifact.NewExtract(a.App),
		inspectOf(a, "image", "ARTIFACT...", "Show everything about artifacts as JSON", "an artifact"), ls, pull, push, rm)
}

// flagError explains the error about an unknown flag: why Longshore lacks a flag of another tool, or the name of a similar
// flag.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return base.NeedsCommand(cmd, words) // the flag belongs to an unknown command
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return &base.UsageError{Err: err}
	}
	if why, ok := foreign.Flag(strings.TrimPrefix(cmd.CommandPath(), "longshore "), unknown.GetSpecifiedName()); ok {
		return &base.UsageError{Err: foreignFlag(unknown.GetSpecifiedName(), why)}
	}
	if len(unknown.GetSpecifiedName()) > 1 {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := present.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, near)
		}
	}
	return &base.UsageError{Err: err}
}

// foreignFlag is the error about a flag of another tool.
func foreignFlag(name string, why foreign.Reason) error {
	dashes, verdict := "--", "is not supported"
	if len(name) == 1 {
		dashes = "-"
	}
	if why.Nothing {
		verdict = "does not apply here"
	}
	return fmt.Errorf("%s%s %s: %s", dashes, name, verdict, why.Text)
}
