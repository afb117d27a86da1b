package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/help"
	"github.com/longshore/longshore/internal/config"
)

// Options are what Main needs.
type Options struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Version        string
	// Agent runs the agent until ctx ends; without it there is no such command. It may change
	// level, which is the log's.
	Agent func(ctx context.Context, cfg config.Config, log *slog.Logger, level *slog.LevelVar) error
	// Guest is the agent inside of a virtual machine; its arguments begin with the program's
	// name. It returns the program's status, and is nil when Agent is.
	Guest func(args []string) int
	// Teardown removes what runs and what it uses, without an agent. Containers have grace to
	// end by themselves. It is nil when Agent is.
	Teardown func(ctx context.Context, cfg config.Config, log *slog.Logger, grace time.Duration) error
	// Repair makes the damaged files of a node sound whose agent does not run; with dry it only
	// says what it would do. It tells w about each file. It is nil when Agent is.
	Repair func(cfg config.Config, log *slog.Logger, w io.Writer, dry bool) error
}

// app is the state that the commands share.
type app struct {
	o          Options
	socket     string
	guest      string
	root       string
	state      string
	configFile string
}

// exitError ends the program with a particular status; err may be nil.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a command line that is not valid.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Main runs one command and returns the process's exit status.
func Main(ctx context.Context, o Options) int {
	a := &app{o: o}
	root := newRoot(a)
	root.SetArgs(o.Args)
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var usage *usageError
	var exit *exitError
	status := 1
	switch {
	case errors.As(err, &exit):
		status = exit.status
		if exit.err == nil {
			return status
		}
	case errors.As(err, &usage), isCobraUsage(err):
		status = 2
		if name := cmd.Name(); name == "run" || name == "create" || name == "exec" {
			status = statusCannot // all other statuses are the program's
		}
		_, _ = fmt.Fprintf(o.Stderr, "longshore: %s (see `%s --help`)\n", oneLine(err.Error()), cmd.CommandPath())
		return status
	}
	_, _ = fmt.Fprintf(o.Stderr, "longshore: %s\n", a.explain(err))
	return status
}

// isCobraUsage reports whether err is a usage error that cobra has made.
func isCobraUsage(err error) bool {
	for _, s := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs", "invalid argument", "accepts ", "requires at"} {
		if strings.HasPrefix(err.Error(), s) {
			return true
		}
	}
	return false
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// agentCommand is the command that runs the agent.
const agentCommand = "agent"

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "longshore",
		Short:         "One node agent that any orchestrator can drive",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       a.o.Version,
		Args:          cobra.ArbitraryArgs,
		RunE:          needsCommand,
	}
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = false
	f := root.PersistentFlags()
	f.StringVar(&a.socket, "socket", "", "the agent's control socket (default $LONGSHORE_SOCKET, else control.sock in the state directory)")
	f.StringVar(&a.guest, "guest", "", "the agent inside of a virtual machine: vsock://CID:PORT, hvsock:///PATH:PORT behind a monitor's socket (default $LONGSHORE_GUEST)")
	f.StringVar(&a.root, "root", "", "directory for data that survives a boot (default "+config.Default().Agent.Root+")")
	f.StringVar(&a.state, "state", "", "directory for data that need not survive a boot (default "+config.Default().Agent.State+")")
	f.StringVar(&a.configFile, "config", "", "configuration file (default "+config.DefaultPath+")")
	if a.o.Agent != nil && len(a.o.Args) > 0 && a.o.Args[0] == agentCommand {
		// The agent keeps what it was called with as long as it runs. The other commands would
		// take a twentieth of its memory.
		root.AddCommand(newAgent(a))
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
	if a.o.Agent != nil {
		for _, cmd := range []*cobra.Command{newAgent(a), newRepair(a), newTeardown(a), newGuest(a)} {
			cmd.GroupID = "node"
			root.AddCommand(cmd)
		}
	}
	a.complete(root)
	help.Give(root)
	return root
}

type group struct {
	id, title string
	commands  []func(*app) *cobra.Command
}

func groups() []group {
	return []group{
		{"containers", "Containers:", []func(*app) *cobra.Command{
			newRun, newCreate, newPs, newSandboxes, newLogs, newExec, newAttach, newCp, newInspect, newWhy, newStart, newStop, newRestart, newKill, newPause, newResume, newRename, newUpdate, newRm, newWait, newStats, newTop,
			newPort, newContainerGroup,
		}},
		{"images", "Images, volumes and networks:", []func(*app) *cobra.Command{newImages, newPull, newPush, newLogin, newLogout, newTag, newRmi, newImport, newExport, newHistory, newPrune, newVolume, newNetwork, newImageGroup}},
		{"node", "The node:", []func(*app) *cobra.Command{newInfo, newSystem, newEvents, newDoctor, newCheck, newConfig, newSwarm, newOCI, newVersion, newMan, newDebug}},
	}
}

// socketPath returns the path of the agent's socket.
func (a *app) socketPath() string {
	switch {
	case a.socket != "":
		return a.socket
	case a.o.Getenv("LONGSHORE_SOCKET") != "":
		return a.o.Getenv("LONGSHORE_SOCKET")
	case a.state != "":
		return filepath.Join(a.state, "control.sock")
	}
	return filepath.Join(config.Default().Agent.State, "control.sock")
}
