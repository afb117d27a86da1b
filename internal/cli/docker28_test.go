package cli

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/foreign"
)

// docker28Table has each command and flag that docker 28 shows in its help. LONGSHORE_UPDATE=1 writes the state of each.
const docker28Table = "testdata/docker28/commands.txt"

// TestDocker28 compares docker's commands and flags with ours: each is present, or its use ends with the reason in the table.
func TestDocker28(t *testing.T) {
	b, err := os.ReadFile(docker28Table)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	var c docker28Command
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			out = append(out, line)
			continue
		}
		names, state, ok := strings.Cut(line, ": ")
		if !ok {
			t.Fatalf("%q is not NAMES: STATE", line)
		}
		var got string
		if line[0] != ' ' {
			c, got = newDocker28(t, strings.Split(names, ", "))
		} else {
			got = c.flag(t, strings.Fields(names))
		}
		if got != state {
			t.Errorf("docker %s %s\ntable:     %s\nlongshore: %s\n(LONGSHORE_UPDATE=1 changes the table)", c.words, strings.TrimSpace(names), state, got)
		}
		switch kind, text, _ := strings.Cut(got, ": "); {
		case kind == "present" && text == "", kind == "not applicable":
		case kind == "refused" && strings.Contains(text, "use "):
		default:
			t.Errorf("docker %s %s: %q is none of present, refused with what to use, not applicable with the reason", c.words, strings.TrimSpace(names), got)
		}
		out = append(out, names+": "+got)
	}
	if t.Failed() && os.Getenv("LONGSHORE_UPDATE") != "" {
		if err := os.WriteFile(docker28Table, []byte(strings.Join(out, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// docker28Command is a command of docker.
type docker28Command struct {
	words []string
	ours  *cobra.Command // nil if we do not have it
}

// newDocker28 finds our command for the names of one of docker's, and returns its state. Either all names are ours, or none.
func newDocker28(t *testing.T, names []string) (c docker28Command, state string) {
	t.Helper()
	root := newRoot(&app{base.NewApp(Options{Version: "1", Getenv: os.Getenv})})
	root.InitDefaultVersionFlag()
	var states []string
	for _, name := range names {
		words := strings.Fields(strings.TrimPrefix(name, "docker"))
		found, rest, err := root.Find(words)
		if err != nil {
			t.Fatal(err)
		}
		present := len(rest) == 0 && (found != root || len(words) == 0)
		if c.ours == nil && c.words == nil {
			if c.words = words; present {
				c.ours = found
			}
		}
		if !present {
			states = append(states, reason(t, words))
			continue
		}
		states = append(states, "present")
		if _, ok := foreign.Command(strings.Join(words, " ")); ok {
			t.Errorf("%s is present and has a reason why it is missing", name)
		}
	}
	slices.Sort(states)
	return c, strings.Join(slices.Compact(states), "; ")
}

// flag returns the state of a flag: its long name, and its short one if it has one.
func (c docker28Command) flag(t *testing.T, names []string) string {
	t.Helper()
	if c.ours == nil {
		t.Fatalf("%s: flags of a missing command are no part of the table", c.words)
	}
	long, short := strings.TrimPrefix(names[0], "--"), ""
	if len(names) > 1 {
		short = strings.TrimPrefix(names[1], "-")
	}
	var found *pflag.Flag
	if found = c.ours.Flags().Lookup(long); found == nil {
		found = c.ours.InheritedFlags().Lookup(long)
	}
	if found == nil {
		state := reason(t, slices.Concat(c.words, []string{names[0]}))
		for _, name := range names[1:] {
			if s := reason(t, slices.Concat(c.words, []string{name})); !strings.HasPrefix(s, "refused: ") && !strings.HasPrefix(s, "not applicable: ") {
				state += ", but " + name + ": " + s
			}
		}
		return state
	}
	if short != "" && found.Shorthand != short {
		return "present, but without " + names[1]
	}
	if _, ok := foreign.Flag(strings.Join(c.words, " "), long); ok {
		t.Errorf("%s --%s is present and has a reason why it is missing", c.words, long)
	}
	return "present"
}

// reason runs a command line that is refused and returns the reason in the error.
func reason(t *testing.T, args []string) string {
	t.Helper()
	var stderr bytes.Buffer
	status := Main(context.Background(), Options{Args: args, Stdin: os.Stdin, Stdout: &stderr, Stderr: &stderr, Getenv: func(string) string { return "" }, Version: "1"})
	text, _, ok := strings.Cut(strings.TrimPrefix(stderr.String(), "longshore: "), " (see `longshore")
	if !ok || status != 2 && status != base.StatusCannot {
		return "status " + text
	}
	flag := strings.HasPrefix(args[len(args)-1], "-")
	if why, ok := strings.CutPrefix(text, args[len(args)-1]+" is not supported: "); ok && flag {
		return "refused: " + why
	}
	if why, ok := strings.CutPrefix(text, args[len(args)-1]+" does not apply here: "); ok && flag {
		return "not applicable: " + why
	}
	if why, ok := foreign.Command(strings.Join(args, " ")); ok && !flag && why.Text == text {
		if why.Nothing {
			return "not applicable: " + text
		}
		return "refused: " + text
	}
	return text
}
