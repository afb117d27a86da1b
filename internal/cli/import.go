package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/image/layout"
)

func newImport(a *app) *cobra.Command {
	var input string
	var program bool
	cmd := &cobra.Command{
		Use:     "import [FILE|DIRECTORY]",
		Aliases: []string{"load"},
		Short:   "Import images from an OCI or docker archive, or from an OCI layout; without FILE, or with -, from standard input",
		Args:    base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in, name := a.Stdin, input
			if len(args) == 1 {
				if input != "" {
					return &base.UsageError{Err: errors.New("two archives are named: one as an argument and one with -i")}
				}
				name = args[0]
			}
			if _, ok := base.Terminal(a.Stdin); ok && name == "" {
				return &base.UsageError{Err: errors.New("the archive would come from a terminal: name a file or use a pipe")}
			}
			if name != "" && name != "-" {
				f, err := os.Open(name)
				if err != nil {
					return fmt.Errorf("open archive: %w", err)
				}
				defer func() { _ = f.Close() }()
				in = f
				if fi, err := f.Stat(); err == nil && fi.IsDir() {
					r := layout.Archive(name)
					defer func() { _ = r.Close() }()
					in = r
				}
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Images.ImportImages(cmd.Context())
				if err != nil {
					return err
				}
				buf := make([]byte, base.ArchiveChunk)
				for first := true; ; first = false {
					n, rerr := io.ReadFull(in, buf)
					if n > 0 {
						if err := stream.Send(&longshorev1.ImportImagesRequest{Data: buf[:n], Program: first && program}); err != nil {
							break // the answer has the reason
						}
					}
					if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
						break
					}
					if rerr != nil {
						return fmt.Errorf("read archive: %w", rerr)
					}
				}
				resp, err := stream.CloseAndRecv()
				if err != nil {
					return err
				}
				for _, img := range resp.GetImages() {
					names := img.GetNames()
					if len(names) == 0 {
						names = []string{img.GetId()}
					}
					before := ""
					if cmd.CalledAs() == "load" { // scripts look for these words
						before = "Loaded image: "
					}
					if err := a.Print("%s\n", before+strings.Join(names, "\n"+before)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&input, "input", "i", "", "file to read")
	cmd.Flags().BoolVar(&program, "program", false, "FILE is one program, which becomes an image of the CRI of 2017, named by its digest")
	cmd.Flags().BoolP("quiet", "q", false, "no effect: import shows no progress")
	return cmd
}
