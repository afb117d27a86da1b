package cli

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

// imageFilters are the names of the filters of images.
var imageFilters = []string{"reference", "dangling", "before", "since", "owner", "type"}

func newImages(a *app) *cobra.Command {
	req := &longshorev1.ListImagesRequest{}
	var flags listFlags
	var digests, all bool
	cmd := &cobra.Command{
		Use:   "images [NAME]",
		Short: "List the images of every owner",
		Long:  "List the images of every owner, or those of one name, which may have * in it.",
		Args:  base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				flags.filters = append(flags.filters, "reference="+args[0])
			}
			format, filters, err := flags.parsed(imageFilters)
			if err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Images.ListImages(cmd.Context(), req)
				if err != nil {
					return err
				}
				list, err := filterImages(resp.GetImages(), filters)
				if err != nil {
					return err
				}
				switch {
				case flags.json:
					return present.WriteList(a.Stdout, list)
				case flags.ids:
					for _, img := range list {
						id := img.GetId()
						if !flags.all {
							id = base.Short(id)
						}
						if err := a.Print("%s\n", id); err != nil {
							return err
						}
					}
					return nil
				case format != nil:
					var rows []present.Row
					for _, img := range list {
						rows = append(rows, listing.Images(img, flags.all)...)
					}
					return format.Rows(a.Stdout, listing.ImageHeaders, rows)
				}
				return imageTable(a, list, flags.all, digests)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only this owner's")
	cmd.Flags().BoolVar(&digests, "digests", false, "show the digests of the manifests")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "no effect: images always shows all images")
	flags.define(cmd, imageFilters)
	return cmd
}

// filterImages returns the images of list that match the filters, each with its matching names only.
func filterImages(list []*longshorev1.Image, f present.Filters) ([]*longshorev1.Image, error) {
	for _, v := range f["type"] {
		if v != "image" && v != "artifact" {
			return nil, fmt.Errorf("--filter type=%s: the types are image and artifact", v)
		}
	}
	var after, before time.Time
	for name, at := range map[string]*time.Time{"since": &after, "before": &before} {
		for _, v := range f[name] {
			i := slices.IndexFunc(list, func(img *longshorev1.Image) bool { return present.Image(v, img.GetId(), img.GetNames()...) })
			if i < 0 {
				return nil, fmt.Errorf("--filter %s=%s: no image has this name", name, v)
			}
			*at = list[i].GetCreated().AsTime()
		}
	}
	var out []*longshorev1.Image
	for _, img := range list {
		created := img.GetCreated().AsTime()
		kind := "image"
		if img.GetArtifact() != "" {
			kind = "artifact"
		}
		if !f.Any("dangling", func(v string) bool { return (v == "true" || v == "1") == (len(img.GetNames()) == 0) }) ||
			!f.Any("type", func(v string) bool { return v == kind }) || !f.Any("owner", func(v string) bool { return v == img.GetOwner() }) ||
			!after.IsZero() && !created.After(after) || !before.IsZero() && !created.Before(before) {
			continue
		}
		if len(f["reference"]) > 0 {
			img.Names = slices.DeleteFunc(img.GetNames(), func(n string) bool {
				return !f.Any("reference", func(v string) bool { return matchesName(v, n) })
			})
			if len(img.GetNames()) == 0 {
				continue
			}
		}
		out = append(out, img)
	}
	return out, nil
}

// matchesName reports whether an image's full name matches pattern, which may lack registry and
// tag, and contain *.
func matchesName(pattern, name string) bool {
	repository, _ := present.Repository(name)
	for _, form := range []string{name, repository} {
		for {
			if ok, err := path.Match(pattern, form); err == nil && ok {
				return true
			}
			_, rest, ok := strings.Cut(form, "/")
			if !ok {
				break
			}
			form = rest
		}
	}
	return false
}

// imageTable prints a row for each name.
func imageTable(a *app, list []*longshorev1.Image, full, digests bool) error {
	var rows [][]string
	for _, img := range list {
		names := img.GetNames()
		if len(names) == 0 {
			names = img.GetDigests()
		}
		if len(names) == 0 {
			names = []string{"-"}
		}
		for _, n := range names {
			id := img.GetId()
			if !full {
				id = base.Short(id)
				if i := strings.Index(n, "@sha256:"); i >= 0 && len(n) > i+20 {
					n = n[:i+20]
				}
			}
			var marks []string
			if img.GetArtifact() != "" {
				marks = append(marks, "artifact")
			}
			if img.GetPinned() {
				marks = append(marks, "pinned")
			}
			row := []string{n, img.GetOwner(), id, base.Size(uint64(max(img.GetSizeBytes(), 0))), base.Ago(img.GetPulled()), strings.Join(marks, ", ")}
			if digests {
				row = slices.Insert(row, 1, img.GetDigest())
			}
			rows = append(rows, row)
		}
	}
	header := []string{"NAME", "OWNER", "ID", "SIZE", "PULLED", ""}
	if digests {
		header = slices.Insert(header, 1, "DIGEST")
	}
	return base.Table(a.Stdout, header, rows)
}
