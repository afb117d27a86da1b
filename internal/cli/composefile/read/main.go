package read

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/obs"
)

// Main runs the program with its arguments and the environment, NAME=value. It returns the exit status.
func Main(args, env []string, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		_, _ = fmt.Fprintf(stderr, "%s is started by longshore up and longshore down\n", composefile.Program)
		return 2
	}
	warnings := &notes{Handler: slog.DiscardHandler}
	obs.BridgeLogrus(slog.New(warnings))
	if err := json.NewEncoder(stdout).Encode(answer(args[0], args[1], env, warnings)); err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// answer executes one command.
func answer(command, text string, env []string, warnings *notes) (a composefile.Answer) {
	o := Options{Env: env}
	err := json.Unmarshal([]byte(text), &o.Options)
	switch {
	case err != nil:
	case command == composefile.CommandLoad:
		if a.Project, err = Load(context.Background(), o); err == nil {
			a.Project.Notes = append(warnings.texts, a.Project.Notes...)
		}
	case command == composefile.CommandLook:
		a.Outline, err = Look(context.Background(), o)
	default:
		err = fmt.Errorf("the command %q is unknown", command)
	}
	refused := (*composefile.RefusedError)(nil)
	switch {
	case errors.As(err, &refused):
		a.Refused = refused.Reasons
	case errors.Is(err, composefile.ErrNoFile):
		a.NoFile = true
	case err != nil:
		a.Error = err.Error()
	}
	return a
}

// notes is a log that keeps the warnings of compose-go.
type notes struct {
	slog.Handler
	texts []string
}

// Enabled reports whether a line is kept.
func (n *notes) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle keeps the text of a line.
func (n *notes) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(attr slog.Attr) bool {
		if attr.Key == "text" {
			n.texts = append(n.texts, attr.Value.String())
		}
		return true
	})
	return nil
}
