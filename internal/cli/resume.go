package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newResume(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "resume CONTAINER...",
		Aliases: []string{"unpause"},
		Short:   "Let paused containers continue",
		Args:    base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Resume(ctx, &longshorev1.ResumeRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}
