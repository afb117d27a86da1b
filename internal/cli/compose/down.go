package compose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/core"
)

// downFlags are the flags of down.
type downFlags struct {
	files            Files
	volumes, orphans bool
	rmi              string
	timeout          int
}

// NewDown returns the command down.
func NewDown(a *base.App) *cobra.Command {
	var f downFlags
	cmd := &cobra.Command{
		Use:   "down [SERVICE...]",
		Short: "Stop and remove the containers and networks of a Compose file",
		Long: "Stop and remove the containers and networks that up has made of a Compose file, in the opposite order of depends_on. External networks and\n" +
			"volumes stay, and so do all volumes without -v. With the name of the project no file is needed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.rmi != "" {
				return &base.UsageError{Err: errors.New("--rmi: down removes no images: use longshore rmi or longshore prune")}
			}
			out, err := composefile.Look(cmd.Context(), a.Stdin, f.files.Options())
			if err != nil {
				return err
			}
			for _, s := range args {
				if out.Services != nil && !slices.Contains(out.Services, s) {
					return fmt.Errorf("no such service: %s (the files have %s)", s, strings.Join(out.Services, ", "))
				}
			}
			return a.Call(func(c *base.Client) error {
				r := &runner{a: a, c: c, name: out.Name}
				if cmd.Flags().Changed("timeout") {
					r.grace = &f.timeout
				}
				return r.down(cmd.Context(), out, args, f)
			})
		},
	}
	fl := cmd.Flags()
	f.files.Define(fl)
	fl.BoolVarP(&f.volumes, "volumes", "v", false, "also remove the volumes, with their content; external ones stay")
	fl.BoolVar(&f.orphans, "remove-orphans", false, "also remove containers of services that the files no longer have")
	fl.IntVarP(&f.timeout, "timeout", "t", 0, "seconds from the stop signal to KILL (default: each container's own)")
	fl.StringVar(&f.rmi, "rmi", "", "refused: images are not removed")
	return cmd
}

func (r *runner) down(ctx context.Context, out composefile.Outline, only []string, f downFlags) error {
	all, err := r.containers(ctx)
	if err != nil {
		return err
	}
	list := slices.DeleteFunc(all, func(c *longshorev1.Container) bool {
		if len(only) > 0 {
			return !slices.Contains(only, serviceOf(c))
		}
		return out.Services != nil && !f.orphans && !slices.Contains(out.Services, serviceOf(c))
	})
	anonymous, err := r.anonymous(ctx, list)
	if err != nil {
		return err
	}
	errs := graphOf(list, out.DependsOn).reversed().walk(func(name string, _ map[string]error) error {
		return together(list, name, func(c *longshorev1.Container) error { return r.remove(ctx, c, f.volumes) })
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	found := len(list)
	if len(only) == 0 {
		n, err := r.removeNetworks(ctx)
		if err != nil {
			return err
		}
		found += n
	}
	if f.volumes {
		n, err := r.removeVolumes(ctx, anonymous, len(only) == 0)
		if err != nil {
			return err
		}
		found += n
	}
	if found == 0 {
		r.warn("there is nothing to remove for the project %s", r.name)
	}
	return nil
}

// remove stops and removes a container.
func (r *runner) remove(ctx context.Context, c *longshorev1.Container, volumes bool) error {
	if err := r.stop(ctx, c); err != nil {
		return err
	}
	r.step("Container", c.GetName(), "Removing")
	_, err := r.c.Containers.Remove(ctx, &longshorev1.RemoveRequest{Name: c.GetId(), Force: true, Volumes: volumes})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	r.step("Container", c.GetName(), "Removed")
	return nil
}

// stop stops a container if it runs or would be started again.
func (r *runner) stop(ctx context.Context, c *longshorev1.Container) error {
	if !active(c) {
		return nil
	}
	r.step("Container", c.GetName(), "Stopping")
	req := &longshorev1.StopRequest{Name: c.GetId()}
	if r.grace != nil {
		req.Grace = durationpb.New(time.Duration(*r.grace) * time.Second)
	}
	if _, err := r.c.Containers.Stop(ctx, req); err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	r.step("Container", c.GetName(), "Stopped")
	return nil
}

// removeNetworks removes the networks that were made for the project, and returns their number.
func (r *runner) removeNetworks(ctx context.Context) (n int, err error) {
	resp, err := r.c.Networks.ListNetworks(ctx, &longshorev1.ListNetworksRequest{})
	if err != nil {
		return 0, err
	}
	for _, net := range resp.GetNetworks() {
		if net.GetLabels()[composefile.LabelProject] != r.name {
			continue
		}
		n++
		if len(net.GetMembers()) > 0 {
			r.step("Network", net.GetName(), "Still in use")
			continue
		}
		r.step("Network", net.GetName(), "Removing")
		if _, err := r.c.Networks.RemoveNetwork(ctx, &longshorev1.RemoveNetworkRequest{Name: net.GetName()}); err != nil && status.Code(err) != codes.NotFound {
			return n, err
		}
		r.step("Network", net.GetName(), "Removed")
	}
	return n, nil
}

// removeVolumes removes anonymous volumes and, with named, those that were made for the project. It returns their number.
func (r *runner) removeVolumes(ctx context.Context, anonymous []string, named bool) (n int, err error) {
	resp, err := r.c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: owner})
	if err != nil {
		return 0, err
	}
	for _, v := range resp.GetVolumes() {
		ours := named && v.GetLabels()[composefile.LabelProject] == r.name
		if !ours && !slices.Contains(anonymous, v.GetName()) {
			continue
		}
		if ours {
			n++
			r.step("Volume", v.GetName(), "Removing")
		}
		if _, err := r.c.Volumes.RemoveVolume(ctx, &longshorev1.RemoveVolumeRequest{Name: v.GetName()}); err != nil && status.Code(err) != codes.NotFound {
			return n, err
		}
		if ours {
			r.step("Volume", v.GetName(), "Removed")
		}
	}
	return n, nil
}

// anonymous returns the names of the anonymous volumes of containers. A container that was replaced has left its ones to its
// successor, which mounts them by name.
func (r *runner) anonymous(ctx context.Context, list []*longshorev1.Container) (names []string, err error) {
	resp, err := r.c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: owner})
	if err != nil {
		return nil, err
	}
	for _, v := range resp.GetVolumes() {
		if v.GetLabels()[core.AnonymousLabel] == "" {
			continue
		}
		if slices.ContainsFunc(list, func(c *longshorev1.Container) bool { return slices.Contains(c.GetVolumes(), v.GetName()) }) {
			names = append(names, v.GetName())
		}
	}
	return names, nil
}
