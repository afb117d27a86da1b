package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newSleep(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "sleep CONTAINER...",
		Short: "Freeze running containers and give their memory back",
		Long: `Freeze running containers and give their memory back. It goes to files, compressed. Connections, open files
and threads stay. A container wakes by "longshore wake", and by everything that needs it: an exec, a client that
attaches, a stop, a signal.`,
		Args: base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				resp, err := c.Containers.Sleep(ctx, &longshorev1.SleepRequest{Name: name, Force: force})
				if err != nil {
					return err
				}
				for _, m := range resp.GetRest().GetResident() {
					text := fmt.Sprintf("%s: process %d keeps ", name, m.GetPid())
					if m.GetBytes() > 0 {
						text += base.Size(m.GetBytes()) + ": "
					} else {
						text += "its memory: "
					}
					_, _ = fmt.Fprintln(a.Stderr, text+m.GetWhy())
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}

func newWake(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "wake CONTAINER...",
		Short: "Let sleeping containers continue",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Wake(ctx, &longshorev1.WakeRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}
