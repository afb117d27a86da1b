package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newKill(a *app) *cobra.Command {
	var force bool
	var sig string
	cmd := &cobra.Command{
		Use:   "kill CONTAINER...",
		Short: "Send a signal to the main processes of containers",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Kill(ctx, &longshorev1.KillRequest{Name: name, Signal: sig, Force: force})
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&sig, "signal", "s", "KILL", "signal by name or number")
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}
