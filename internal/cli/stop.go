package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/runflags"
)

func newStop(a *app) *cobra.Command {
	var force bool
	var after, sig string
	cmd := &cobra.Command{
		Use:   "stop NAME...",
		Short: "Stop containers or sandboxes: signal, wait, kill",
		Args:  base.MinArgs(1, "a container or sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			grace, err := runflags.Grace("--time", after)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Stop(ctx, &longshorev1.StopRequest{Name: name, Signal: sig, Grace: grace, Force: force})
				return err
			})
		},
	}
	stopFlags(cmd, &after, &sig)
	cmd.Flags().BoolVar(&force, "force", false, "also objects of other owners")
	return cmd
}

// stopFlags defines the flags that say how a container is stopped.
func stopFlags(cmd *cobra.Command, after, sig *string) {
	cmd.Flags().SetNormalizeFunc(runflags.NormalNames)
	cmd.Flags().StringVarP(after, "time", "t", "", "time until SIGKILL, seconds or 1m30s (default: the container's own)")
	cmd.Flags().StringVarP(sig, "signal", "s", "", "first signal (default: the container's own)")
}
