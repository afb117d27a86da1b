package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/service"
	"github.com/longshore/longshore/internal/cli/session"
)

func newStart(a *app) *cobra.Command {
	var force, attach, stdin bool
	var keys session.DetachKeys
	var sdnotify string
	cmd := &cobra.Command{
		Use:   "start [-a] [-i] CONTAINER...",
		Short: "Start created containers, or ended ones again",
		Long: "Start created containers, or ended ones again with their files. With -a, start shows the program's output and exits with its exit status;\n" +
			"-i also sends standard input. With --sdnotify, start is the main process of a systemd service: see longshore unit.",
		Args: base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready, err := service.ParseReady(sdnotify)
			switch {
			case err != nil:
				return &base.UsageError{Err: err}
			case ready != service.Ignore && stdin:
				return &base.UsageError{Err: errors.New("-i cannot be combined with --sdnotify: a service has no standard input")}
			case ready != service.Ignore:
				if err := base.ExactArgs(1, "one container, with --sdnotify,")(cmd, args); err != nil {
					return err
				}
				return base.StartError(a.Call(func(c *base.Client) error {
					found, err := service.Find(cmd.Context(), c, args[0])
					if err != nil {
						return err
					}
					return serve(cmd.Context(), a.App, c, found.GetId(), ready)
				}))
			}
			if attach || stdin {
				if err := base.ExactArgs(1, "one container, with -a or -i,")(cmd, args); err != nil {
					return err
				}
				req := &longshorev1.AttachStart{Name: args[0], Stdin: stdin, Start: true, Force: force}
				return base.StartError(a.Call(func(c *base.Client) error { return a.attach(cmd.Context(), c, req, attached{true, keys}) }))
			}
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Start(ctx, &longshorev1.StartRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&attach, "attach", "a", false, "show the program's output, forward signals, and exit with its status")
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", false, "attach standard input as well")
	keys.Define(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	sdnotifyFlag(cmd.Flags(), &sdnotify)
	return cmd
}

func newRestart(a *app) *cobra.Command {
	var after, sig string
	cmd := &cobra.Command{
		Use:   "restart CONTAINER...",
		Short: "Stop containers, unless they have ended, and start them again",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			grace, err := runflags.Grace("--time", after)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Restart(ctx, &longshorev1.RestartRequest{Name: name, Signal: sig, Grace: grace})
				return err
			})
		},
	}
	stopFlags(cmd, &after, &sig)
	return cmd
}
