package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newWait(a *app) *cobra.Command {
	var condition string
	cmd := &cobra.Command{
		Use:   "wait CONTAINER...",
		Short: "Wait until containers have ended and print their exit statuses",
		Long: "Wait until containers have ended and print their exit statuses, also of containers that are not started yet. With --condition not-running\n" +
			"wait does not wait for the first start, with next-exit it waits for the next end even if a container has ended before, and with removed\n" +
			"for the removal.",
		Args: base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				type end struct {
					status int32
					err    error
				}
				ends := make([]chan end, len(args))
				for i, name := range args { // all at once: the second may end or go before the first
					ends[i] = make(chan end, 1)
					go func() {
						resp, err := c.Containers.Wait(cmd.Context(), &longshorev1.WaitRequest{Name: name, Condition: condition})
						ends[i] <- end{resp.GetAutopsy().GetStatus(), err}
					}()
				}
				failed := false
				for _, ended := range ends {
					e := <-ended
					switch {
					case e.err != nil && (len(args) == 1 || status.Code(e.err) == codes.Unavailable):
						return e.err
					case e.err != nil: // the others are waited for nevertheless
						failed = true
						a.Warn("%s", a.Explain(e.err))
						continue
					}
					if err := a.Print("%d\n", e.status); err != nil {
						return err
					}
				}
				if failed {
					return &base.ExitError{Status: 1}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&condition, "condition", "", "what to wait for: not-running, next-exit or removed (default: the end)")
	return cmd
}
