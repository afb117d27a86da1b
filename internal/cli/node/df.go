package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

// NewSystemDf returns the command system df.
func NewSystemDf(a *base.App) *cobra.Command {
	var verbose, asJSON bool
	var format string
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show the disk usage of images, containers and volumes",
		Long: "Show the disk usage of images, containers and volumes. Images share layers: the sum of their sizes is larger than the store, and removing\n" +
			"unused images frees at most the size shown as reclaimable.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.DiskUsage(cmd.Context(), &longshorev1.DiskUsageRequest{})
				switch {
				case err != nil:
					return err
				case asJSON:
					return present.WriteJSON(a.Stdout, present.Plain(resp), true)
				case verbose && f != nil:
					doc, err := usageDocument(cmd.Context(), c, resp)
					if err != nil {
						return err
					}
					return f.One(a.Stdout, doc)
				case verbose:
					return usageTable(a, resp)
				case f != nil:
					return f.Rows(a.Stdout, nil, usageRows(resp))
				}
				var rows [][]string
				for _, k := range usageKinds(resp) {
					active, size, reclaimable := k.sums()
					rows = append(rows, []string{k.name, fmt.Sprint(len(k.list)), fmt.Sprint(active), size, reclaimable})
				}
				if err := base.Table(a.Stdout, []string{"TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"}, rows); err != nil {
					return err
				}
				return a.Print("The image store has %s.\n", base.Size(resp.GetStoreBytes()))
			})
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show each object")
	cmd.Flags().StringVar(&format, "format", "", "template for each kind, such as '{{.Type}} {{.Size}}', \"table TEMPLATE\", or json; with -v for a document with Images, Containers and Volumes")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func usageTable(a *base.App, r *longshorev1.DiskUsageResponse) error {
	var rows [][]string
	for _, kind := range usageKinds(r) {
		for _, u := range kind.list {
			used := ""
			if u.GetActive() {
				used = "active"
			}
			name := u.GetName()
			if name == "" {
				name = "-"
			}
			rows = append(rows, []string{kind.one, u.GetOwner(), base.Cut(name, 60), base.Short(u.GetId()), base.Size(u.GetBytes()), used})
		}
	}
	return base.Table(a.Stdout, []string{"TYPE", "OWNER", "NAME", "ID", "SIZE", ""}, rows)
}

// usageKind is the usage of one kind of objects.
type usageKind struct {
	name, one string // the name of the kind, and of one object
	list      []*longshorev1.Usage
}

func usageKinds(r *longshorev1.DiskUsageResponse) []usageKind {
	return []usageKind{{"Images", "image", r.GetImages()}, {"Containers", "container", r.GetContainers()}, {"Volumes", "volume", r.GetVolumes()}}
}

// sums returns the number of the objects in use, the size of all, and the size of those that are not in use.
func (k usageKind) sums() (active int, size, reclaimable string) {
	var total, idle uint64
	for _, u := range k.list {
		if total += u.GetBytes(); u.GetActive() {
			active++
		} else {
			idle += u.GetBytes()
		}
	}
	share := ""
	if total > 0 {
		share = fmt.Sprintf(" (%d%%)", idle*100/total)
	}
	return active, base.Size(total), base.Size(idle) + share
}

// usageRows returns a row for each kind with docker's names. There is no build cache.
func usageRows(r *longshorev1.DiskUsageResponse) []present.Row {
	var rows []present.Row
	for _, k := range append(usageKinds(r), usageKind{name: "Build Cache"}) {
		active, size, reclaimable := k.sums()
		if k.name == "Volumes" {
			k.name = "Local Volumes"
		}
		rows = append(rows, present.Row{
			"Type": k.name, "TotalCount": fmt.Sprint(len(k.list)), "Active": fmt.Sprint(active), "Size": size, "Reclaimable": reclaimable,
		})
	}
	return rows
}

// usageDocument returns each object, with docker's names: those of the lists of its kind.
func usageDocument(ctx context.Context, c *base.Client, r *longshorev1.DiskUsageResponse) (present.Row, error) {
	containers, err := c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		return nil, err
	}
	images, err := c.Images.ListImages(ctx, &longshorev1.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	volumes, err := c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	rows := map[string]present.Row{} // by kind, owner and ID or name
	key := func(parts ...string) string { return strings.Join(parts, " ") }
	ofImage, ofVolume := map[string]int{}, map[string]int{}
	for _, ct := range containers.GetContainers() {
		rows[key("container", ct.GetOwner(), ct.GetId())] = listing.Container(ct, true)
		ofImage[ct.GetImageId()]++
		for _, v := range ct.GetVolumes() {
			ofVolume[key(ct.GetOwner(), v)]++
		}
	}
	for _, img := range images.GetImages() {
		row := listing.Images(img, true)[0]
		row["Containers"] = strconv.Itoa(ofImage[img.GetId()])
		rows[key("image", img.GetOwner(), img.GetId())] = row
	}
	for _, v := range volumes.GetVolumes() {
		row := listing.Volume(v)
		row["Links"] = strconv.Itoa(ofVolume[key(v.GetOwner(), v.GetName())])
		rows[key("volume", v.GetOwner(), v.GetName())] = row
	}
	doc := present.Row{"BuildCache": []any{}}
	for _, k := range usageKinds(r) {
		list := []any{}
		for _, u := range k.list {
			id := u.GetId()
			if id == "" {
				id = u.GetName() // a volume's
			}
			row := rows[key(k.one, u.GetOwner(), id)]
			if row == nil {
				continue // it was removed between the two calls
			}
			row["Owner"], row["Size"], row["Active"] = u.GetOwner(), base.Size(u.GetBytes()), u.GetActive()
			list = append(list, row)
		}
		doc[k.name] = list
	}
	return doc, nil
}
