package cli

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// newExportFiles is docker's export. Ours writes images, so it exists only as a command of the group container.
func newExportFiles(a *app) *cobra.Command {
	var output string
	var force bool
	cmd := &cobra.Command{
		Use:   "export CONTAINER",
		Short: "Write a container's files as a tar",
		Long: "Write a container's files as a tar, running or not, with hard links and extended attributes, without the files of its volumes and\n" +
			"other mounts. import makes an image of the tar.",
		Args: base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := base.Terminal(a.Stdout); ok && output == "" {
				return &base.UsageError{Err: errors.New("the tar would go to a terminal: use -o FILE or a pipe")}
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Containers.CopyOut(cmd.Context(), &longshorev1.CopyOutRequest{Name: args[0], WithoutMounts: true, Force: force})
				if err != nil {
					return err
				}
				return a.WriteTo(output, func(w io.Writer) error {
					return base.Receive(stream.Recv, func(m *longshorev1.CopyOutResponse) error {
						_, err := w.Write(m.GetData())
						return err
					})
				})
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	cmd.Flags().BoolVar(&force, "force", false, "also export another owner's container")
	return cmd
}

func newExport(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "export IMAGE...",
		Aliases: []string{"save"},
		Short:   "Write images to an OCI archive",
		Long:    "Write images to an OCI archive for `podman load`, `docker load` and import. To export a container's files, use `cp CONTAINER:/ -`.",
		Args:    base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := base.Terminal(a.Stdout); ok && output == "" {
				return &base.UsageError{Err: errors.New("the archive would go to a terminal: use -o FILE or a pipe")}
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Images.ExportImages(cmd.Context(), &longshorev1.ExportImagesRequest{Names: args})
				if err != nil {
					return err
				}
				return a.WriteTo(output, func(w io.Writer) error {
					return base.Receive(stream.Recv, func(m *longshorev1.ExportImagesResponse) error {
						_, err := w.Write(m.GetData())
						return err
					})
				})
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	return cmd
}
