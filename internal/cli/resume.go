package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newResume(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "resume CONTAINER...",
		Aliases: []string{"unpause"},
		Short:   "Let paused containers continue",
		Args:    minArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client, name string) error {
				_, err := c.containers.Resume(ctx, &longshorev1.ResumeRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}
