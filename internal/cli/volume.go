package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/core"
)

func newVolume(a *app) *cobra.Command {
	return base.GroupOf("volume", "Manage named directories that outlive containers", newVolumeLs(a), newVolumeCreate(a), newVolumeInspect(a), newVolumeRm(a), newVolumePrune(a))
}

// volumeFilters are the names of the filters of volume ls.
var volumeFilters = []string{"name", "label", "label!", "dangling", "owner"}

func newVolumeLs(a *app) *cobra.Command {
	req := &longshorev1.ListVolumesRequest{}
	var flags listFlags
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the volumes of every owner",
		Args:    base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, filters, err := flags.parsed(volumeFilters)
			if err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error {
				list, err := volumes(cmd.Context(), c, req.GetOwner(), filters)
				if err != nil {
					return err
				}
				if flags.json {
					return present.WriteList(a.Stdout, list)
				}
				var rows [][]string
				var templated []present.Row
				for _, v := range list {
					rows = append(rows, []string{v.GetName(), v.GetOwner(), base.Ago(v.GetCreated()), v.GetPath()})
					templated = append(templated, listing.Volume(v))
					if flags.ids {
						if err := a.Print("%s\n", v.GetName()); err != nil {
							return err
						}
					}
				}
				switch {
				case flags.ids:
					return nil
				case format != nil:
					return format.Rows(a.Stdout, listing.VolumeHeaders, templated)
				}
				return base.Table(a.Stdout, []string{"NAME", "OWNER", "CREATED", "PATH"}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only this owner's")
	flags.define(cmd, volumeFilters)
	return cmd
}

// volumes returns an owner's volumes that match the filters.
func volumes(ctx context.Context, c *base.Client, owner string, f present.Filters) ([]*longshorev1.Volume, error) {
	resp, err := c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: owner})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	if len(f["dangling"]) > 0 {
		containers, err := c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
		if err != nil {
			return nil, err
		}
		for _, ct := range containers.GetContainers() {
			for _, name := range ct.GetVolumes() {
				used[ct.GetOwner()+"/"+name] = true
			}
		}
	}
	return slices.DeleteFunc(resp.GetVolumes(), func(v *longshorev1.Volume) bool {
		return !f.Any("name", func(want string) bool {
			return strings.Contains(v.GetName(), strings.Trim(want, "^$")) && anchored(v.GetName(), want)
		}) ||
			!f.Any("owner", func(want string) bool { return want == v.GetOwner() }) || !f.Labels(v.GetLabels()) ||
			!f.Any("dangling", func(want string) bool { return (want == "true" || want == "1") != used[v.GetOwner()+"/"+v.GetName()] })
	}), nil
}

// volumeOf returns the volume with a name: that of owner cli if several owners have one.
func volumeOf(ctx context.Context, c *base.Client, name string) (*longshorev1.Volume, error) {
	resp, err := c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	var found *longshorev1.Volume
	for _, v := range resp.GetVolumes() {
		if v.GetName() == name && (found == nil || v.GetOwner() == "cli") {
			found = v
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s: not found", name)
	}
	return found, nil
}

func newVolumeInspect(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect NAME...",
		Short: "Show everything about volumes as JSON",
		Args:  base.MinArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inspectEach(args, format, func(c *base.Client, name string) (any, error) { return inspectVolume(cmd.Context(), c, name) })
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", inspectFormat)
	return cmd
}

func inspectVolume(ctx context.Context, c *base.Client, name string) (any, error) {
	v, err := volumeOf(ctx, c, name)
	if err != nil {
		return nil, err
	}
	return present.Volume(v), nil
}

func newVolumeCreate(a *app) *cobra.Command {
	var labels, opts []string
	var driver string
	var ignore bool
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a volume",
		Long: "Create a volume, with a generated name if NAME is missing: a directory of the node, or with --opt a file system that is mounted while\n" +
			"containers use it. The options are those of Docker's local volumes:\n" +
			"type (nfs, cifs, tmpfs, or another filesystem; none for a bind mount), device, and o with the options of the mount, separated by commas.",
		Example: "  longshore volume create data\n" +
			"  longshore volume create cache --opt type=tmpfs --opt device=tmpfs --opt o=size=64m\n" +
			"  longshore volume create media --opt type=nfs --opt device=nas:/media --opt o=ro,nfsvers=4.2",
		Args: base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if driver != "local" && driver != "" {
				return &base.UsageError{Err: fmt.Errorf("--driver %q: only local is supported; its options mount NFS and other file systems, see --opt", driver)}
			}
			unnamed := len(args) == 0
			if unnamed {
				var id [32]byte
				_, _ = rand.Read(id[:]) // it never fails
				args = []string{hex.EncodeToString(id[:])}
			}
			l, err := typed.Labels(labels)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			o, err := parseOptions(opts)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			if unnamed {
				if l == nil {
					l = map[string]string{}
				}
				l[core.AnonymousLabel] = "true"
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Volumes.CreateVolume(cmd.Context(), &longshorev1.CreateVolumeRequest{Name: args[0], Labels: l, Options: o})
				if ignore && status.Code(err) == codes.AlreadyExists {
					err = nil
				}
				if err != nil {
					return err
				}
				return a.Print("%s\n", cmp.Or(resp.GetVolume().GetName(), args[0]))
			})
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label, NAME=value")
	cmd.Flags().StringArrayVarP(&opts, "opt", "o", nil, "option of the volume, type=, device= or o=")
	cmd.Flags().StringVarP(&driver, "driver", "d", "local", "accepts only local")
	cmd.Flags().BoolVar(&ignore, "ignore", false, "succeed if the volume exists with the same options")
	return cmd
}

// parseOptions parses NAME=value. The value may contain further = signs.
func parseOptions(list []string) (map[string]string, error) {
	var opts map[string]string
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if _, twice := opts[name]; !ok || name == "" || twice {
			return nil, fmt.Errorf("--opt %q is not NAME=value, or is set twice", name) // the value may have a password
		}
		if opts == nil {
			opts = map[string]string{}
		}
		opts[name] = value
	}
	return opts, nil
}

func newVolumeRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove volumes that no container uses",
		Args:    base.MinArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				v, err := volumeOf(ctx, c, name) // the agent does not report a missing volume
				if err != nil {
					return base.IfForced(force, err)
				}
				if v.GetOwner() != "cli" {
					return fmt.Errorf("volume %s belongs to %s, which removes it", name, v.GetOwner())
				}
				_, err = c.Volumes.RemoveVolume(ctx, &longshorev1.RemoveVolumeRequest{Name: name})
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not fail when there is no such volume")
	return cmd
}

func newVolumePrune(a *app) *cobra.Command {
	var force bool
	p := pruning{}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove the anonymous volumes that no container uses",
		Long:  "Remove the anonymous volumes that no container uses, with their content. Named volumes are kept without --all.",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.parse(); err != nil {
				return err
			}
			question := "Remove every anonymous volume that no container uses, with its content."
			if p.named {
				question = "Remove every volume that no container uses, with its content, also those with a name."
			}
			if err := confirm(a, force, question); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return a.pruneVolumes(cmd, c, p, "") })
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	cmd.Flags().BoolVarP(&p.named, "all", "a", false, "also named volumes")
	p.define(cmd)
	return cmd
}
