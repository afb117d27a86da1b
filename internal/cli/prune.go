package cli

import (
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newPrune(a *app) *cobra.Command {
	var all, containers, volumes bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images and, when asked, ended containers and unused volumes",
		Long: "Remove what is no longer used of the objects of owner cli: images without a name; with --all every image that no container uses;  " +
			"with --containers first the containers that have ended; with --volumes the volumes that no container uses.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return a.call(func(c *client) error {
				if containers {
					if err := a.pruneContainers(cmd, c); err != nil {
						return err
					}
				}
				if volumes {
					resp, err := c.volumes.PruneVolumes(ctx, &longshorev1.PruneVolumesRequest{})
					if err != nil {
						return err
					}
					for _, v := range resp.GetVolumes() {
						if err := a.print("volume %s\n", v.GetName()); err != nil {
							return err
						}
					}
				}
				resp, err := c.images.PruneImages(ctx, &longshorev1.PruneImagesRequest{All: all})
				if err != nil {
					return err
				}
				return a.print("freed %s of images\n", size(resp.GetFreedBytes()))
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "every image that no container uses")
	cmd.Flags().BoolVar(&containers, "containers", false, "also containers that have ended")
	cmd.Flags().BoolVar(&volumes, "volumes", false, "also volumes that no container uses")
	return cmd
}

func (a *app) pruneContainers(cmd *cobra.Command, c *client) error {
	resp, err := c.containers.ListContainers(cmd.Context(), &longshorev1.ListContainersRequest{Owner: "cli", All: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, ct := range resp.GetContainers() {
		if ct.GetState() != "exited" {
			continue
		}
		_, err := c.containers.Remove(cmd.Context(), &longshorev1.RemoveRequest{Name: ct.GetId()})
		switch {
		case err == nil:
			errs = append(errs, a.print("container %s\n", ct.GetKey()))
		case status.Code(err) != codes.NotFound: // somebody else has removed it meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
