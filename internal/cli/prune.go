package cli

import (
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newPrune(a *app) *cobra.Command {
	p := pruning{images: true}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images and, when asked, ended containers and unused volumes",
		Long: "Remove what is no longer used of the objects of owner cli: images without a name; with --all every image that no container uses;  " +
			"with --containers first the containers that have ended; with --volumes the volumes that no container uses.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error { return a.prune(cmd, c, p) })
		},
	}
	cmd.Flags().BoolVarP(&p.all, "all", "a", false, "every image that no container uses")
	cmd.Flags().BoolVar(&p.containers, "containers", false, "also containers that have ended")
	cmd.Flags().BoolVar(&p.volumes, "volumes", false, "also volumes that no container uses")
	return cmd
}

// pruneOf returns a command prune of a group.
func pruneOf(a *app, p pruning, summary string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: summary,
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sure(a, force, summary+"."); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return a.prune(cmd, c, p) })
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	if p.images {
		cmd.Flags().BoolVarP(&p.all, "all", "a", false, "every image that no container uses, not only those without a name")
	}
	return cmd
}

// pruning says what is removed where nothing uses it.
type pruning struct{ all, images, containers, volumes bool }

func (a *app) prune(cmd *cobra.Command, c *base.Client, p pruning) error {
	if p.containers {
		if err := a.pruneContainers(cmd, c); err != nil {
			return err
		}
	}
	if p.volumes {
		resp, err := c.Volumes.PruneVolumes(cmd.Context(), &longshorev1.PruneVolumesRequest{})
		if err != nil {
			return err
		}
		for _, v := range resp.GetVolumes() {
			if err := a.Print("volume %s\n", v.GetName()); err != nil {
				return err
			}
		}
	}
	if !p.images {
		return nil
	}
	resp, err := c.Images.PruneImages(cmd.Context(), &longshorev1.PruneImagesRequest{All: p.all})
	if err != nil {
		return err
	}
	return a.Print("freed %s of images\n", base.Size(resp.GetFreedBytes()))
}

func (a *app) pruneContainers(cmd *cobra.Command, c *base.Client) error {
	resp, err := c.Containers.ListContainers(cmd.Context(), &longshorev1.ListContainersRequest{Owner: "cli", All: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, ct := range resp.GetContainers() {
		if ct.GetState() != "exited" {
			continue
		}
		_, err := c.Containers.Remove(cmd.Context(), &longshorev1.RemoveRequest{Name: ct.GetId()})
		switch {
		case err == nil:
			errs = append(errs, a.Print("container %s\n", ct.GetKey()))
		case status.Code(err) != codes.NotFound: // somebody else has removed it meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
