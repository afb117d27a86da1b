package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/core"
)

func newPrune(a *app) *cobra.Command {
	p := pruning{images: true}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images and, when asked, ended containers and unused volumes",
		Long: "Remove unused objects of owner cli: images without a name; with --all every image that no container uses; with --containers first the\n" +
			"ended containers; with --volumes the anonymous volumes that no container uses (for named volumes: longshore volume prune --all).",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.parse(); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return a.prune(cmd, c, p) })
		},
	}
	cmd.Flags().BoolVarP(&p.all, "all", "a", false, "every image that no container uses")
	cmd.Flags().BoolVar(&p.containers, "containers", false, "also ended containers")
	cmd.Flags().BoolVar(&p.volumes, "volumes", false, "also anonymous volumes that no container uses")
	p.define(cmd)
	return cmd
}

// pruneOf returns the command prune of a group.
func pruneOf(a *app, p pruning, summary string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: summary,
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.parse(); err != nil {
				return err
			}
			if err := confirm(a, force, summary+"."); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return a.prune(cmd, c, p) })
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	if p.images {
		cmd.Flags().BoolVarP(&p.all, "all", "a", false, "every image that no container uses, not only those without a name")
	}
	p.define(cmd)
	return cmd
}

// pruning selects the unused objects to remove.
type pruning struct {
	all, images, containers, volumes bool

	named      bool // also volumes with a name
	filterArgs []string
	filters    present.Filters
	until      time.Time // only objects that were created before it; zero is any time
}

// define defines the flag --filter.
func (p *pruning) define(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&p.filterArgs, "filter", nil, "only objects that match: until=TIME or until=DURATION (created before it), label=NAME[=VALUE], label!=NAME[=VALUE]")
}

// parse reads the values of --filter.
func (p *pruning) parse() (err error) {
	if p.filters, err = present.ParseFilters(p.filterArgs, "until", "label", "label!"); err != nil {
		return &base.UsageError{Err: err}
	}
	if len(p.filters["until"]) > 1 {
		return &base.UsageError{Err: errors.New("--filter until= is set twice")}
	}
	for _, text := range p.filters["until"] {
		at, err := parseTime("--filter until", text)
		if err != nil {
			return err
		}
		p.until = at.AsTime()
	}
	return nil
}

// fits reports whether an object with this time of creation and these labels is to be removed.
func (p *pruning) fits(created time.Time, labels map[string]string) bool {
	return (p.until.IsZero() || created.Before(p.until)) && p.filters.Labels(labels)
}

func (a *app) prune(cmd *cobra.Command, c *base.Client, p pruning) error {
	if p.containers {
		if err := a.pruneContainers(cmd, c, p); err != nil {
			return err
		}
	}
	if p.volumes {
		if err := a.pruneVolumes(cmd, c, p, "volume "); err != nil {
			return err
		}
	}
	switch {
	case !p.images:
		return nil
	case len(p.filterArgs) > 0:
		return a.pruneImages(cmd, c, p)
	}
	resp, err := c.Images.PruneImages(cmd.Context(), &longshorev1.PruneImagesRequest{All: p.all})
	if err != nil {
		return err
	}
	return a.Print("freed %s of images\n", base.Size(resp.GetFreedBytes()))
}

// pruneImages removes the images that match the filters and that no container uses.
func (a *app) pruneImages(cmd *cobra.Command, c *base.Client, p pruning) error {
	resp, err := c.Images.ListImages(cmd.Context(), &longshorev1.ListImagesRequest{Owner: "cli"})
	if err != nil {
		return err
	}
	var errs []error
	for _, img := range resp.GetImages() {
		if !p.all && len(img.GetNames()) > 0 || img.GetPinned() || !p.fits(img.GetCreated().AsTime(), img.GetLabels()) {
			continue
		}
		_, err := c.Images.RemoveImage(cmd.Context(), &longshorev1.RemoveImageRequest{Name: img.GetId()})
		switch status.Code(err) {
		case codes.OK:
			errs = append(errs, a.Print("image %s\n", img.GetId()))
		case codes.NotFound, codes.FailedPrecondition: // it was removed, or a container uses it
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pruneVolumes removes volumes that no container uses: anonymous ones, and with named also those with a name. The agent
// refuses to remove a volume that a container uses meanwhile.
func (a *app) pruneVolumes(cmd *cobra.Command, c *base.Client, p pruning, kind string) error {
	list, err := volumes(cmd.Context(), c, "cli", present.Filters{"dangling": {"true"}})
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range list {
		if !p.named && v.GetLabels()[core.AnonymousLabel] == "" || v.GetCreated() == nil || !p.fits(v.GetCreated().AsTime(), v.GetLabels()) {
			continue // a volume without a time has a damaged record, which may still be repaired
		}
		_, err := c.Volumes.RemoveVolume(cmd.Context(), &longshorev1.RemoveVolumeRequest{Name: v.GetName()})
		switch status.Code(err) {
		case codes.OK:
			errs = append(errs, a.Print("%s%s\n", kind, v.GetName()))
		case codes.NotFound, codes.FailedPrecondition: // it was removed, or a container uses it
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (a *app) pruneContainers(cmd *cobra.Command, c *base.Client, p pruning) error {
	resp, err := c.Containers.ListContainers(cmd.Context(), &longshorev1.ListContainersRequest{Owner: "cli", All: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, ct := range resp.GetContainers() {
		if ct.GetState() != "exited" || !p.fits(ct.GetCreated().AsTime(), ct.GetLabels()) {
			continue
		}
		_, err := c.Containers.Remove(cmd.Context(), &longshorev1.RemoveRequest{Name: ct.GetId()})
		switch {
		case err == nil:
			errs = append(errs, a.Print("container %s\n", ct.GetKey()))
		case status.Code(err) != codes.NotFound: // it was removed meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
