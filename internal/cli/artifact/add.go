package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/core"
)

// NewAdd returns the command that makes an artifact of files.
func NewAdd(a *base.App) *cobra.Command {
	m := making{}
	var annotations []string
	var replace bool
	cmd := &cobra.Command{
		Use:   "add ARTIFACT FILE...",
		Short: "Make an artifact of files",
		Long: "Make an artifact of files, with a layer for each. A file's name, without directories, is its name in a volume of the artifact, unless\n" +
			"--annotation org.opencontainers.image.title=NAME gives another.",
		Args: base.MinArgs(2, "a name for the artifact, and a file,"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if m.name = named(args[0]); m.name == "" {
				return &base.UsageError{Err: fmt.Errorf("artifact name %q: a new artifact has no digest yet", args[0])}
			}
			if m.annotations, err = typed.Labels(annotations); err != nil {
				return &base.UsageError{Err: fmt.Errorf("--annotation: %w", err)}
			}
			m.paths, m.created = args[1:], time.Now()
			if err := m.read(); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return m.send(cmd.Context(), a, c, replace) })
		},
	}
	cmd.Flags().StringVar(&m.kind, "type", unknownType, "type of the artifact, a media type")
	cmd.Flags().StringVar(&m.fileType, "file-type", "", "media type of the files (default: by their content)")
	cmd.Flags().StringArrayVar(&annotations, "annotation", nil, "annotation of each file's layer, NAME=value")
	cmd.Flags().BoolVar(&replace, "replace", false, "give the name to the new artifact if another one has it")
	return cmd
}

// named returns a name with a tag, and "" for one with a digest.
func named(name string) string {
	if strings.Contains(name, "@") {
		return ""
	}
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		name += ":latest"
	}
	return name
}

// send sends the archive to the agent and prints the artifact's ID.
func (m *making) send(ctx context.Context, a *base.App, c *base.Client, replace bool) error {
	if !replace {
		list, err := c.Images.ListImages(ctx, &longshorev1.ListImagesRequest{Owner: string(core.OwnerCLI)})
		if err != nil {
			return err
		}
		for _, img := range list.GetImages() {
			if slices.ContainsFunc(img.GetNames(), func(n string) bool { return n == m.name || strings.HasSuffix(n, "/"+m.name) }) {
				return fmt.Errorf("%s exists: use --replace, or another name", m.name)
			}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an archive that ends early must not be imported
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	go func() { _ = w.CloseWithError(m.write(w)) }() // it never fails
	stream, err := c.Images.ImportImages(ctx)
	if err != nil {
		return err
	}
	buf := make([]byte, base.ArchiveChunk)
	for {
		n, rerr := r.Read(buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return rerr
		}
		if n > 0 {
			if err := stream.Send(&longshorev1.ImportImagesRequest{Data: buf[:n]}); err != nil {
				break // the answer has the reason
			}
		}
		if rerr != nil {
			break
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		return err
	}
	return a.Print("%s\n", digest.FromBytes(m.manifest))
}
