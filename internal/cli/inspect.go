package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

func newInspect(a *app) *cobra.Command {
	return inspectOf(a, "", "NAME...", "Show everything about containers, sandboxes, images, volumes and networks as JSON", "a name")
}

// inspectOf returns the command inspect for objects of one kind, container or image, or for all if kind is empty.
func inspectOf(a *app, kind, usage, summary, needs string) *cobra.Command {
	var showEnv, image, sizes bool
	var format, typed string
	cmd := &cobra.Command{
		Use:   "inspect " + usage,
		Short: summary,
		Long: summary + ": an array of documents\n" +
			"with the members of docker's and podman's inspect, and the agent's whole record as Record.\n" +
			"With -f, each document is formatted by a template of Go's text/template. Values of environment variables are hidden without --show-env.",
		Args: base.MinArgs(1, needs),
		RunE: func(cmd *cobra.Command, args []string) error {
			want := kind
			switch {
			case image || typed == "image":
				want = "image"
			case slices.Contains(inspectTypes, typed):
				want = typed
			case typed != "":
				return &base.UsageError{Err: fmt.Errorf("--type %q is none of %s", typed, strings.Join(inspectTypes, ", "))}
			}
			return a.inspectEach(args, format, func(c *base.Client, name string) (any, error) {
				doc, err := inspectOne(cmd.Context(), c, want, name, showEnv)
				if err != nil || !sizes {
					return doc, err
				}
				return withSizes(cmd.Context(), c, doc)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&format, "format", "f", "", inspectFormat)
	fl.BoolVar(&showEnv, "show-env", false, "show the values of environment variables")
	if kind == "" {
		fl.StringVar(&typed, "type", "", "look up only this kind: "+strings.Join(inspectTypes, ", "))
		fl.BoolVar(&image, "image", false, "look up an image, even if a container has that name; --type image does the same")
	}
	if kind != "image" {
		fl.BoolVarP(&sizes, "size", "s", false, "show the size of the container's changes, and with its image")
	}
	return cmd
}

// withSizes adds the sizes of a container to its document. Other documents have no sizes.
func withSizes(ctx context.Context, c *base.Client, doc any) (any, error) {
	filled, ok := doc.(present.Filled)
	if !ok {
		return doc, nil
	}
	id, sandbox, ok := filled.Container()
	if !ok {
		return doc, nil
	}
	resp, err := c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true, Sizes: true, Sandbox: sandbox})
	if err != nil {
		return nil, err
	}
	for _, of := range resp.GetContainers() {
		if of.GetId() == id {
			return filled.WithSizes(of), nil
		}
	}
	return doc, nil
}

// inspectTypes are the kinds of objects for --type.
var inspectTypes = []string{"container", "sandbox", "image", "volume", "network"}

// inspectFormat is the help of the flag --format of the commands inspect.
const inspectFormat = "template to fill with each document, such as '{{.Name}}', or json for a line each"

// inspectEach prints the document that one returns for each name: all as an array or, with a format, one after the
// other. It reports a missing object and continues, and returns an error at the end.
func (a *app) inspectEach(names []string, format string, one func(c *base.Client, name string) (any, error)) error {
	var f *present.Format
	if format != "" {
		var err error
		if f, err = present.ParseFormat(format); err != nil {
			return &base.UsageError{Err: err}
		}
	}
	return a.Call(func(c *base.Client) error {
		docs, failed := []any{}, false
		for _, name := range names {
			doc, err := one(c, name)
			if err != nil {
				if status.Code(err) == codes.Unavailable {
					return err
				}
				a.Warn("%s", a.Explain(err))
				failed = true
				continue
			}
			if f == nil {
				docs = append(docs, doc)
			} else if err := f.One(a.Stdout, doc); err != nil {
				return err
			}
		}
		if f == nil {
			if err := present.WriteJSON(a.Stdout, docs, true); err != nil {
				return err
			}
		}
		if failed {
			return &base.ExitError{Status: 1}
		}
		return nil
	})
}

// inspectOne returns the document of the object with a name. want is the kind of object, "" for any.
func inspectOne(ctx context.Context, c *base.Client, want, name string, showEnv bool) (any, error) {
	switch want {
	case "volume":
		return inspectVolume(ctx, c, name)
	case "network":
		return inspectNetwork(ctx, c, name)
	case "":
		doc, err := inspectContainerOrImage(ctx, c, "", name, showEnv)
		if status.Code(err) != codes.NotFound {
			return doc, err
		}
		for _, other := range []func(context.Context, *base.Client, string) (any, error){inspectVolume, inspectNetwork} {
			if doc, oerr := other(ctx, c, name); oerr == nil {
				return doc, nil
			}
		}
		return nil, err
	}
	return inspectContainerOrImage(ctx, c, want, name, showEnv)
}

func inspectContainerOrImage(ctx context.Context, c *base.Client, want, name string, showEnv bool) (any, error) {
	var resp *longshorev1.InspectResponse
	var err error
	if want != "image" {
		resp, err = c.Containers.Inspect(ctx, &longshorev1.InspectRequest{Name: name, ShowEnv: showEnv})
		if err == nil && want != "" && resp.GetKind() != want {
			return nil, fmt.Errorf("%s is a %s, not a %s", name, resp.GetKind(), want)
		}
	}
	if want == "image" || want == "" && status.Code(err) == codes.NotFound {
		img, ierr := c.Images.InspectImage(ctx, &longshorev1.InspectImageRequest{Name: name, ShowEnv: showEnv})
		if want == "image" || ierr == nil {
			resp, err = img, ierr
		}
	}
	if err != nil {
		return nil, err
	}
	return present.Document(resp.GetKind(), resp.GetJson())
}
