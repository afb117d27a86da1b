// Package base has the common parts of all commands: the connection to the agent, output, and
// errors of arguments.
package base

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/config"
)

// Options are the parameters of Main.
type Options struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Version        string
	// Agent runs the agent until ctx ends. If it is nil, there is no command agent. It may change level, the level of
	// the log.
	Agent func(ctx context.Context, cfg config.Config, log *slog.Logger, level *slog.LevelVar) error
	// Guest is the agent inside of a virtual machine; its arguments begin with the program's
	// name. It returns the program's status, and is nil when Agent is.
	Guest func(args []string) int
	// Teardown removes all sandboxes with their resources, without an agent. Containers have grace
	// to end by themselves. It is nil when Agent is.
	Teardown func(ctx context.Context, cfg config.Config, log *slog.Logger, grace time.Duration) error
	// Repair repairs the damaged files of a node while its agent does not run; with dry it only
	// reports. It writes a line for each file to w. It is nil when Agent is.
	Repair func(cfg config.Config, log *slog.Logger, w io.Writer, dry bool) error
	// Offline returns doctor's findings that need no agent. It is nil when Agent is.
	Offline func(cfg config.Config) []*longshorev1.Finding
	// Formats returns the statement of the agent's formats. It is nil when Agent is.
	Formats func() string
}

// App is the state that the commands share.
type App struct {
	Options
	socket     string
	guest      string
	root       string
	state      string
	configFile string
}

// ExitError ends the program with a particular status. Err may be nil.
type ExitError struct {
	Status int
	Err    error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// UsageError is a command line that is not valid.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// OneLine makes one line of a text.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// NewApp returns the state of a program that is called with o.
func NewApp(o Options) *App { return &App{Options: o} }

// DefineFlags defines the flags that all commands have.
func (a *App) DefineFlags(f *pflag.FlagSet) {
	f.StringVar(&a.socket, "socket", "", "the agent's control socket (default $LONGSHORE_SOCKET, else control.sock in the state directory)")
	f.StringVar(&a.guest, "guest", "", "the agent inside of a virtual machine: vsock://CID:PORT, hvsock:///PATH:PORT behind a monitor's socket (default $LONGSHORE_GUEST)")
	f.StringVar(&a.root, "root", "", "directory for data that survives a boot (default "+config.Default().Agent.Root+")")
	f.StringVar(&a.state, "state", "", "directory for data that need not survive a boot (default "+config.Default().Agent.State+")")
	f.StringVar(&a.configFile, "config", "", "configuration file (default "+config.DefaultPath+")")
}

// socketPath returns the path of the agent's socket.
func (a *App) socketPath() string {
	switch {
	case a.socket != "":
		return a.socket
	case a.Getenv("LONGSHORE_SOCKET") != "":
		return a.Getenv("LONGSHORE_SOCKET")
	case a.state != "":
		return filepath.Join(a.state, "control.sock")
	}
	return filepath.Join(config.Default().Agent.State, "control.sock")
}

// OtherSocket returns the absolute path of the agent's socket if it is not the default one, otherwise "".
func (a *App) OtherSocket() string {
	path := a.socketPath()
	if path == filepath.Join(config.Default().Agent.State, "control.sock") {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// LoadConfig reads the files as the agent would, and applies our flags.
func (a *App) LoadConfig() (config.Config, error) {
	var cfg config.Config
	var err error
	if a.configFile != "" {
		cfg, err = config.Load(a.configFile)
	} else {
		cfg, err = config.LoadDefault()
	}
	if err != nil {
		return cfg, err
	}
	cfg = cfg.Rooted(a.root, a.state)
	return cfg, cfg.Validate()
}
