package node

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// NewDebug returns the command debug.
func NewDebug(a *base.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect data for a bug report",
		Args:  cobra.ArbitraryArgs,
		RunE:  base.NeedsCommand,
	}
	cmd.AddCommand(newDebugDump(a), newDebugPlan(a))
	return cmd
}

func newDebugDump(a *base.App) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Write goroutines, configuration (secrets masked), objects and the last 1,000 events to a tar.gz",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				output = "longshore-dump-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Node.Dump(cmd.Context(), &longshorev1.DumpRequest{})
				if err != nil {
					return err
				}
				err = a.WriteTo(output, func(w io.Writer) error {
					return base.Receive(stream.Recv, func(m *longshorev1.DumpResponse) error {
						if _, err := w.Write(m.GetData()); err != nil {
							return fmt.Errorf("write: %w", err)
						}
						return nil
					})
				})
				if err != nil || output == "-" {
					return err
				}
				return a.Print("%s\n", output)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, - for standard output (default: a name with the time)")
	return cmd
}
