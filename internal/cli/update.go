package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/restart"
)

func newUpdate(a *app) *cobra.Command {
	req := &longshorev1.UpdateRequest{}
	var memory, swap, reservation string
	cmd := &cobra.Command{
		Use:   "update [flags] CONTAINER...",
		Short: "Change the limits and the restart policies of containers",
		Long:  "Change the limits and the restart policies of containers, now and for later starts. What has no flag does not change.",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			fl := cmd.Flags()
			if fl.Changed("restart") {
				if _, err := restart.Parse(req.GetRestart()); err != nil {
					return &base.UsageError{Err: fmt.Errorf("--restart: %w", err)}
				}
			}
			changed := false
			for _, name := range []string{"memory", "memory-swap", "memory-reservation", "cpus", "cpu-quota", "cpu-period", "cpu-shares", "cpuset-cpus", "cpuset-mems", "pids", "restart"} {
				changed = changed || fl.Changed(name)
			}
			if !changed {
				return &base.UsageError{Err: errors.New("neither a limit nor a restart policy is set: there is nothing to change")}
			}
			if err := fillUpdate(req, memory, swap, reservation); err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				req.Name = name
				_, err := c.Containers.Update(ctx, req)
				return err
			})
		},
	}
	fl := cmd.Flags()
	fl.SetNormalizeFunc(runflags.NormalNames)
	fl.StringVarP(&memory, "memory", "m", "", "memory limit, such as 64m or 2g")
	fl.StringVar(&swap, "memory-swap", "", "limit of memory and swap together, such as 1g; -1 for no limit of swap")
	fl.StringVar(&reservation, "memory-reservation", "", "memory that is reclaimed last when memory is scarce")
	fl.Float64Var(&req.Cpus, "cpus", 0, "CPU limit, such as 1.5")
	fl.Int64Var(&req.CpuQuota, "cpu-quota", 0, "CPU time in each period, in microseconds, in place of --cpus; -1 for no limit")
	fl.Uint64Var(&req.CpuPeriod, "cpu-period", 0, "period of --cpu-quota in microseconds")
	fl.Uint64VarP(&req.CpuShares, "cpu-shares", "c", 0, "share of the CPUs when they are busy; 1024 is the default")
	fl.StringVar(&req.CpusetCpus, "cpuset-cpus", "", "CPUs to run on, such as 0-2,4")
	fl.StringVar(&req.CpusetMems, "cpuset-mems", "", "memory nodes to use")
	fl.Int64Var(&req.Pids, "pids", 0, "limit of processes and threads; -1 for none")
	fl.StringVar(&req.Restart, "restart", "", runflags.RestartUsage)
	return cmd
}

// fillUpdate puts sizes into the request.
func fillUpdate(req *longshorev1.UpdateRequest, memory, swap, reservation string) (err error) {
	if memory != "" {
		if req.MemoryBytes, err = typed.Bytes(memory); err != nil {
			return fmt.Errorf("--memory: %w", err)
		}
	}
	if reservation != "" {
		if req.MemoryReservationBytes, err = typed.Bytes(reservation); err != nil {
			return fmt.Errorf("--memory-reservation: %w", err)
		}
	}
	switch swap {
	case "":
	case "-1":
		req.MemorySwapBytes = -1
	default:
		n, err := typed.Bytes(swap)
		if err != nil {
			return fmt.Errorf("--memory-swap: %w", err)
		}
		req.MemorySwapBytes = int64(min(n, 1<<62))
	}
	return nil
}
