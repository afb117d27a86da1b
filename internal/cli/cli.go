package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/audit"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/checkpoint"
	"github.com/longshore/longshore/internal/cli/compose"
	"github.com/longshore/longshore/internal/cli/egress"
	"github.com/longshore/longshore/internal/cli/help"
	"github.com/longshore/longshore/internal/cli/migrate"
	"github.com/longshore/longshore/internal/cli/node"
	"github.com/longshore/longshore/internal/cli/service"
	"github.com/longshore/longshore/internal/cli/ui"
)

// Options are the parameters of Main.
type Options = base.Options

// app adds the commands of this package to the shared state.
type app struct{ *base.App }

// onNode makes a command of package node like those of this one.
func onNode(command func(*base.App) *cobra.Command) func(*app) *cobra.Command {
	return func(a *app) *cobra.Command { return command(a.App) }
}

// newUp makes the command up, which pulls with the stored credentials.
func newUp(a *app) *cobra.Command {
	return compose.NewUp(a.App, func(ctx context.Context, image string) (*longshorev1.Credentials, error) {
		return credentialsFor(ctx, a, image, "")
	})
}

// Main runs one command and returns the process's exit status.
func Main(ctx context.Context, o Options) int {
	a := &app{base.NewApp(o)}
	root := newRoot(a)
	root.SetArgs(o.Args)
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var usage *base.UsageError
	var exit *base.ExitError
	status := 1
	switch {
	case errors.As(err, &exit):
		status = exit.Status
		if exit.Err == nil {
			return status
		}
	case errors.As(err, &usage), isCobraUsage(err):
		status = 2
		switch strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "longshore "), "container ") {
		case "run", "create", "exec":
			status = base.StatusCannot // all other statuses are the program's
		}
		_, _ = fmt.Fprintf(o.Stderr, "longshore: %s (see `%s --help`)\n", base.OneLine(err.Error()), cmd.CommandPath())
		return status
	}
	_, _ = fmt.Fprintf(o.Stderr, "longshore: %s\n", a.Explain(err))
	return status
}

// isCobraUsage reports whether err is a usage error of cobra.
func isCobraUsage(err error) bool {
	for _, s := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs", "invalid argument", "accepts ", "requires at"} {
		if strings.HasPrefix(err.Error(), s) {
			return true
		}
	}
	return false
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "longshore",
		Short:         "One node agent that any orchestrator can drive",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       a.Version,
		Args:          cobra.ArbitraryArgs,
		RunE:          base.NeedsCommand,
	}
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = false
	a.DefineFlags(root.PersistentFlags())
	if a.Agent != nil && len(a.Args) > 0 && a.Args[0] == node.AgentCommand {
		// The command tree stays in memory while the agent runs. With the other commands it would take a twentieth of
		// the agent's memory.
		root.AddCommand(node.NewAgent(a.App))
		return root
	}
	for _, group := range groups() {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, make := range group.commands {
			cmd := make(a)
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	if a.Agent != nil {
		for _, cmd := range []*cobra.Command{node.NewAgent(a.App), node.NewRepair(a.App), node.NewTeardown(a.App), node.NewGuest(a.App)} {
			cmd.GroupID = "node"
			root.AddCommand(cmd)
		}
	}
	a.complete(root)
	help.SetExamples(root)
	return root
}

type group struct {
	id, title string
	commands  []func(*app) *cobra.Command
}

func groups() []group {
	return []group{
		{"containers", "Containers:", []func(*app) *cobra.Command{
			newRun, newCreate, newPs, newSandboxes, newLogs, newExec, newAttach, newCp, newDiff, newCommit, newInspect, newWhy, newStart, newStop, newRestart, newKill, newPause, newResume, newSleep, newWake, onNode(checkpoint.New), onNode(checkpoint.NewRestore), newRename, newUpdate, newRm, newWait, newStats, newTop,
			newPort, newUp, onNode(compose.NewDown), onNode(service.NewUnit), newContainerGroup,
		}},
		{"images", "Images, volumes and networks:", []func(*app) *cobra.Command{newImages, newPull, newPush, newLogin, newLogout, newTag, newRmi, newImport, newLoad, newExport, newHistory, newPrune, newVolume, newNetwork, onNode(egress.New), newImageGroup, newArtifactGroup}},
		{"node", "The node:", []func(*app) *cobra.Command{onNode(node.NewInfo), onNode(ui.New), newSystem, newEvents, onNode(audit.New), onNode(node.NewDoctor), onNode(node.NewCheck), onNode(node.NewConfig), onNode(migrate.New), onNode(node.NewSwarm), onNode(node.NewGrants), onNode(node.NewOCI), onNode(node.NewVersion), onNode(node.NewUpgrade), newMan, onNode(node.NewDebug)}},
	}
}
