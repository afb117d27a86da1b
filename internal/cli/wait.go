package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newWait(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait CONTAINER...",
		Short: "Wait until containers have ended and print their exit statuses",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				for _, name := range args {
					resp, err := c.Containers.Wait(cmd.Context(), &longshorev1.WaitRequest{Name: name})
					if err != nil {
						return err
					}
					if err := a.Print("%d\n", resp.GetAutopsy().GetStatus()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
