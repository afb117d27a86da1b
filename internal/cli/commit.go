package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

func newDiff(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "diff CONTAINER",
		Short: "List the changes of a container to its image's files",
		Long: "List the changes of a container to its image's files: A for added, C for changed, D for deleted files. Volumes and other mounts\n" +
			"are not compared.",
		Args: base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Containers.Diff(cmd.Context(), &longshorev1.DiffRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return base.Receive(stream.Recv, func(m *longshorev1.DiffResponse) error {
					for _, ch := range m.GetChanges() {
						var err error
						if f != nil {
							err = f.One(a.Stdout, present.Row{"Type": ch.GetKind(), "Path": ch.GetPath()})
						} else {
							err = a.Print("%s %s\n", ch.GetKind(), base.Printable(ch.GetPath()))
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "template for each change, such as '{{.Type}} {{.Path}}', or json")
	return cmd
}

func newCommit(a *app) *cobra.Command {
	req := &longshorev1.CommitRequest{}
	var pause, quiet bool
	cmd := &cobra.Command{
		Use:   "commit [flags] CONTAINER [IMAGE]",
		Short: "Make an image from a container",
		Long: "Make an image from a container's image and changed files, and print its ID. The new image has the container's variables, command, user\n" +
			"and labels. Volumes and other mounts are not part of it.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return base.ExactArgs(1, "a container, and perhaps the new image's name,")(nil, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Name = args[0]; len(args) > 1 {
				req.Image = args[1]
			}
			req.Running = !pause
			return a.Call(func(c *base.Client) error {
				resp, err := c.Containers.Commit(cmd.Context(), req)
				if err != nil {
					return err
				}
				return a.Print("%s\n", resp.GetId())
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&req.Author, "author", "a", "", "author of the image")
	fl.StringVarP(&req.Message, "message", "m", "", "message for the image's history")
	fl.StringArrayVarP(&req.Changes, "change", "c", nil, "instruction of a Dockerfile: CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK, LABEL, ONBUILD, SHELL, STOPSIGNAL, USER, VOLUME, WORKDIR")
	fl.BoolVarP(&pause, "pause", "p", true, "pause the container during the commit")
	fl.BoolVarP(&quiet, "quiet", "q", false, "no effect: commit shows no progress")
	return cmd
}
