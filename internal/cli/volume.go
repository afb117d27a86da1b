package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
)

func newVolume(a *app) *cobra.Command {
	return base.GroupOf("volume", "Manage named directories that outlive containers", newVolumeLs(a), newVolumeCreate(a), newVolumeRm(a), newVolumePrune(a))
}

func newVolumeLs(a *app) *cobra.Command {
	req := &longshorev1.ListVolumesRequest{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the volumes of every owner",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Volumes.ListVolumes(cmd.Context(), req)
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteList(a.Stdout, resp.GetVolumes())
				}
				var rows [][]string
				for _, v := range resp.GetVolumes() {
					rows = append(rows, []string{v.GetName(), v.GetOwner(), base.Ago(v.GetCreated()), v.GetPath()})
				}
				return base.Table(a.Stdout, []string{"NAME", "OWNER", "CREATED", "PATH"}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only this owner's")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newVolumeCreate(a *app) *cobra.Command {
	var labels, opts []string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume",
		Long: "Create a volume: a directory of the node, or with --opt what is mounted while containers use it. The options are those of Docker's local volumes:\n" +
			"type (nfs, cifs, tmpfs, or another filesystem; none for a bind mount), device, and o with the options of the mount, separated by commas.",
		Example: "  longshore volume create data\n" +
			"  longshore volume create cache --opt type=tmpfs --opt device=tmpfs --opt o=size=64m\n" +
			"  longshore volume create media --opt type=nfs --opt device=nas:/media --opt o=ro,nfsvers=4.2",
		Args: base.ExactArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := typed.Labels(labels)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			o, err := parseOptions(opts)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Volumes.CreateVolume(cmd.Context(), &longshorev1.CreateVolumeRequest{Name: args[0], Labels: l, Options: o})
				if err != nil {
					return err
				}
				return a.Print("%s\n", resp.GetVolume().GetName())
			})
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label, NAME=value")
	cmd.Flags().StringArrayVarP(&opts, "opt", "o", nil, "option of the volume, type=, device= or o=")
	return cmd
}

// parseOptions parses NAME=value. What follows the first = may have others in it.
func parseOptions(list []string) (map[string]string, error) {
	var opts map[string]string
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if _, twice := opts[name]; !ok || name == "" || twice {
			return nil, fmt.Errorf("--opt %q is not NAME=value, or is there twice", name) // the value may have a password
		}
		if opts == nil {
			opts = map[string]string{}
		}
		opts[name] = value
	}
	return opts, nil
}

func newVolumeRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove volumes that no container uses",
		Args:  base.MinArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Volumes.RemoveVolume(ctx, &longshorev1.RemoveVolumeRequest{Name: name})
				return err
			})
		},
	}
}

func newVolumePrune(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove every volume that no container uses",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Volumes.PruneVolumes(cmd.Context(), &longshorev1.PruneVolumesRequest{})
				if err != nil {
					return err
				}
				for _, v := range resp.GetVolumes() {
					if err := a.Print("%s\n", v.GetName()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
