package help

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page returns the manual page of one command, in roff.
func Page(c *cobra.Command, version string) []byte {
	var b bytes.Buffer
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Longshore Manual\"\n", strings.ToUpper(name), "longshore "+version)
	fmt.Fprintf(&b, ".nh\n.ad l\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", roff(name), roff(c.Short), roff(c.UseLine()))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	for line := range strings.Lines(text) {
		fmt.Fprintln(&b, roff(strings.TrimSpace(line)))
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, ".PP\nOther names: %s\n", roff(strings.Join(c.Aliases, ", ")))
	}
	manFlags(&b, "OPTIONS", c.NonInheritedFlags())
	manFlags(&b, "OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n")
		for line := range strings.Lines(c.Example) {
			fmt.Fprintln(&b, roff(strings.TrimRight(line, "\n")))
		}
		b.WriteString(".fi\n")
	}
	var others []string
	if c.HasParent() {
		others = append(others, c.Parent().CommandPath())
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			others = append(others, sub.CommandPath())
		}
	}
	if len(others) > 0 {
		b.WriteString(".SH SEE ALSO\n")
		for i, o := range others {
			sep := ","
			if i == len(others)-1 {
				sep = ""
			}
			fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(strings.ReplaceAll(o, " ", "-")), sep)
		}
	}
	return b.Bytes()
}

func manFlags(b *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		short := ""
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			kind = " " + kind
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR%s\n%s\n", roff(short+"--"+f.Name), roff(kind), roff(usage))
	})
}

// roff escapes characters that are special in roff.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
