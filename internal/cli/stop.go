package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/service"
)

func newStop(a *app) *cobra.Command {
	var force, ignore bool
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
			stop := func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Stop(ctx, &longshorev1.StopRequest{Name: name, Signal: sig, Grace: grace, Force: force})
				return err
			}
			if ignore {
				return a.eachExact(cmd.Context(), args, stop)
			}
			return a.Each(cmd.Context(), args, stop)
		},
	}
	stopFlags(cmd, &after, &sig)
	cmd.Flags().BoolVar(&force, "force", false, "also objects of other owners")
	cmd.Flags().BoolVarP(&ignore, "ignore", "i", false, ignoreUsage)
	return cmd
}

// ignoreUsage describes the flag --ignore of stop and rm.
const ignoreUsage = "skip containers that do not exist; a name is then the whole name of a container of owner cli, never the beginning of an ID"

// eachExact calls fn with the ID of the container that has exactly each name, and skips names without one.
func (a *app) eachExact(ctx context.Context, names []string, fn func(context.Context, *base.Client, string) error) error {
	return a.Call(func(c *base.Client) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, service.Exactly(ctx, c, name, func(id string) error { return fn(ctx, c, id) }))
		}
		return errors.Join(errs...)
	})
}

// stopFlags defines the flags that say how a container is stopped.
func stopFlags(cmd *cobra.Command, after, sig *string) {
	cmd.Flags().SetNormalizeFunc(runflags.NormalNames)
	cmd.Flags().StringVarP(after, "time", "t", "", "time until SIGKILL, seconds or 1m30s (default: the container's own)")
	cmd.Flags().StringVarP(sig, "signal", "s", "", "first signal (default: the container's own)")
}
