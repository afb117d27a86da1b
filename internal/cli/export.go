package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newExport(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "export IMAGE...",
		Aliases: []string{"save"},
		Short:   "Write images to an OCI archive",
		Long:    "Write images to an OCI archive, which `podman load`, `docker load` and import read. (What other tools call export, a container's files, is `cp CONTAINER:/ -`.)",
		Args:    minArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := terminal(a.o.Stdout); ok && output == "" {
				return &usageError{errors.New("the archive would go to a terminal: use -o FILE or a pipe")}
			}
			return a.call(func(c *client) error {
				stream, err := c.images.ExportImages(cmd.Context(), &longshorev1.ExportImagesRequest{Names: args})
				if err != nil {
					return err
				}
				return a.writeTo(output, func(w io.Writer) error {
					return receive(stream.Recv, func(m *longshorev1.ExportImagesResponse) error {
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

// writeTo calls fn to write the file, which appears only when it is complete, or standard output
// when path is "" or "-".
func (a *app) writeTo(path string, fn func(io.Writer) error) error {
	if path == "" || path == "-" {
		w := bufio.NewWriterSize(a.o.Stdout, archiveChunk)
		if err := fn(w); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
	tmp := path + ".part"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = fn(f)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("write %s: %w", path, cerr)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}
