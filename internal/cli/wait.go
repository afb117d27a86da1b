package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newWait(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait CONTAINER...",
		Short: "Wait until containers have ended and print their exit statuses",
		Args:  minArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(func(c *client) error {
				for _, name := range args {
					resp, err := c.containers.Wait(cmd.Context(), &longshorev1.WaitRequest{Name: name})
					if err != nil {
						return err
					}
					if err := a.print("%d\n", resp.GetAutopsy().GetStatus()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
