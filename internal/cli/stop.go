package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newStop(a *app) *cobra.Command {
	var force bool
	var after, sig string
	cmd := &cobra.Command{
		Use:   "stop NAME...",
		Short: "Stop containers or sandboxes: signal, wait, kill",
		Args:  base.MinArgs(1, "a container or sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			grace, err := parseGrace("--time", after)
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
	cmd.Flags().SetNormalizeFunc(normalNames)
	cmd.Flags().StringVarP(after, "time", "t", "", "time until SIGKILL, seconds or 1m30s (default: the container's own)")
	cmd.Flags().StringVarP(sig, "signal", "s", "", "first signal (default: the container's own)")
}

// parseGrace parses the seconds or the duration of a flag; "" is nil.
func parseGrace(flag, s string) (*durationpb.Duration, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // not given
	}
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return durationpb.New(time.Duration(n) * time.Second), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return nil, fmt.Errorf("%s %q is neither seconds nor a duration", flag, s)
	}
	return durationpb.New(d), nil
}
