package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newVolume(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Named directories that outlive containers",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVolumeLs(a), newVolumeCreate(a), newVolumeRm(a), newVolumePrune(a))
	return cmd
}

func newVolumeLs(a *app) *cobra.Command {
	req := &longshorev1.ListVolumesRequest{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List volumes of every owner",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.volumes.ListVolumes(cmd.Context(), req)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(a.o.Stdout, resp.GetVolumes())
				}
				var rows [][]string
				for _, v := range resp.GetVolumes() {
					rows = append(rows, []string{v.GetName(), v.GetOwner(), ago(v.GetCreated()), v.GetPath()})
				}
				return table(a.o.Stdout, []string{"NAME", "OWNER", "CREATED", "PATH"}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only of this owner")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newVolumeCreate(a *app) *cobra.Command {
	var labels []string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a volume",
		Args:  exactArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := parseLabels(labels)
			if err != nil {
				return &usageError{err}
			}
			return a.call(func(c *client) error {
				resp, err := c.volumes.CreateVolume(cmd.Context(), &longshorev1.CreateVolumeRequest{Name: args[0], Labels: l})
				if err != nil {
					return err
				}
				return a.print("%s\n", resp.GetVolume().GetName())
			})
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label, NAME=value")
	return cmd
}

func newVolumeRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove volumes that no container uses",
		Args:  minArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client, name string) error {
				_, err := c.volumes.RemoveVolume(ctx, &longshorev1.RemoveVolumeRequest{Name: name})
				return err
			})
		},
	}
}

func newVolumePrune(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove every volume that no container uses",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.volumes.PruneVolumes(cmd.Context(), &longshorev1.PruneVolumesRequest{})
				if err != nil {
					return err
				}
				for _, v := range resp.GetVolumes() {
					if err := a.print("%s\n", v.GetName()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
