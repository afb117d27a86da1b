package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/image/fromroot"
	"github.com/longshore/longshore/internal/image/layout"
)

// importing has the flags and arguments of import.
type importing struct {
	input, platform string
	program         bool
	image           fromroot.Image
	load            bool // the command is load, which takes only images
}

func newImport(a *app) *cobra.Command {
	var f importing
	cmd := &cobra.Command{
		Use:   "import [FILE|DIRECTORY|-] [IMAGE]",
		Short: "Import images from an OCI or docker archive or an OCI layout, or make an image of a root file system",
		Long: "Import images from an OCI or docker archive, or from an OCI layout; without FILE, or with -, from standard input. A tar with anything else\n" +
			"is a root file system, which becomes an image with the name IMAGE and the settings of --change. Both may be compressed by gzip, zstd\n" +
			"or bzip2.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 2 {
				return &base.UsageError{Err: fmt.Errorf("unexpected argument %q", args[2])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), a, args) },
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.image.Changes, "change", "c", nil, "instruction of a Dockerfile for the image of a root file system, as of commit")
	fl.StringVarP(&f.image.Message, "message", "m", "", "message for the history of the image of a root file system")
	fl.StringVar(&f.platform, "platform", "", "platform of the root file system, such as linux/arm64 (default: the node's)")
	f.define(fl)
	return cmd
}

func newLoad(a *app) *cobra.Command {
	f := importing{load: true}
	cmd := &cobra.Command{
		Use:   "load [FILE|DIRECTORY|-]",
		Short: "Import images from an OCI or docker archive or an OCI layout",
		Long:  "Import images as import does, with the output of other tools. load takes no root file system.",
		Args:  base.OneArg,
		RunE:  func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), a, args) },
	}
	f.define(cmd.Flags())
	return cmd
}

func (f *importing) define(fl *pflag.FlagSet) {
	fl.StringVarP(&f.input, "input", "i", "", "file to read")
	fl.BoolVar(&f.program, "program", false, "FILE is one program, which becomes an image of the CRI of 2017, named by its digest")
	fl.BoolP("quiet", "q", false, "no effect: no progress is shown")
}

func (f *importing) run(ctx context.Context, a *app, args []string) error {
	in, err := f.open(a, args)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return a.Call(func(c *base.Client) error { return a.importImages(ctx, c, *f, in) })
}

// open checks the arguments and opens the archive.
func (f *importing) open(a *app, args []string) (io.ReadCloser, error) {
	usage := func(format string, args ...any) (io.ReadCloser, error) {
		return nil, &base.UsageError{Err: fmt.Errorf(format, args...)}
	}
	name := f.input
	if len(args) > 0 {
		if name != "" {
			return usage("two archives are named: one as an argument and one with -i")
		}
		name = args[0]
	}
	if len(args) > 1 {
		f.image.Name = args[1]
	}
	if strings.Contains(f.image.Name, "@") {
		return usage("image name %q: a new image has no digest yet", f.image.Name)
	}
	if f.platform != "" {
		os, rest, _ := strings.Cut(f.platform, "/")
		if f.image.Architecture, f.image.Variant, _ = strings.Cut(rest, "/"); os != "linux" || f.image.Architecture == "" {
			return usage("--platform %q is not linux/ARCHITECTURE[/VARIANT]", f.platform)
		}
	}
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return usage("import reads no URLs: use curl -L %s | longshore import - NAME", name)
	}
	if _, ok := base.Terminal(a.Stdin); ok && name == "" {
		return usage("the archive would come from a terminal: name a file or use a pipe")
	}
	if name == "" || name == "-" {
		return io.NopCloser(a.Stdin), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open archive: %w", err)
	}
	if fi, err := file.Stat(); err == nil && fi.IsDir() {
		_ = file.Close()
		return layout.Archive(name), nil
	}
	return file, nil
}

// importImages sends an archive, which it makes first if in is a root file system, and prints the images.
func (a *app) importImages(ctx context.Context, c *base.Client, f importing, in io.Reader) error {
	archive := bufio.NewReaderSize(in, fromroot.HeadBytes)
	if f.program {
		return a.sendArchive(ctx, c, f, archive)
	}
	head, err := archive.Peek(fromroot.HeadBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read archive: %w", err)
	}
	settings := f.image.Name != "" || f.image.Message != "" || f.platform != "" || len(f.image.Changes) > 0
	switch kind := fromroot.Detect(head); {
	case f.load || kind == fromroot.Unknown && !settings:
	case kind == fromroot.Images && settings:
		return &base.UsageError{Err: errors.New("this is an archive of images, which have names and settings of their own: use import without them, and longshore tag")}
	case kind != fromroot.Images:
		return a.importRoot(ctx, c, f, archive)
	}
	return a.sendArchive(ctx, c, f, fromroot.ForAgent(archive))
}

// importRoot makes an archive of a root file system and sends it.
func (a *app) importRoot(ctx context.Context, c *base.Client, f importing, in io.Reader) error {
	spool, err := os.CreateTemp("", "longshore-import-")
	if err != nil {
		return err
	}
	defer func() { _ = spool.Close() }()
	if err := os.Remove(spool.Name()); err != nil {
		return err
	}
	f.image.Created = time.Now().UTC()
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(fromroot.Archive(w, in, spool, f.image)) }() // it never fails
	defer func() { _ = r.Close() }()
	return a.sendArchive(ctx, c, f, r)
}

// sendArchive sends an archive and prints the names of its images, or their IDs.
func (a *app) sendArchive(ctx context.Context, c *base.Client, f importing, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an archive that ends early must not be imported
	stream, err := c.Images.ImportImages(ctx)
	if err != nil {
		return err
	}
	buf := make([]byte, base.ArchiveChunk)
	for first := true; ; first = false {
		n, rerr := in.Read(buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return fmt.Errorf("read archive: %w", rerr)
		}
		if n > 0 {
			if err := stream.Send(&longshorev1.ImportImagesRequest{Data: buf[:n], Program: first && f.program}); err != nil {
				break // the answer has the reason
			}
		}
		if rerr != nil {
			break
		}
	}
	resp, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	for _, img := range resp.GetImages() {
		names := img.GetNames()
		if len(names) == 0 || !f.image.Created.IsZero() { // docker prints the ID of an image of a root file system
			names = []string{img.GetId()}
		}
		before := ""
		if f.load { // scripts look for these words
			before = "Loaded image: "
		}
		if err := a.Print("%s\n", before+strings.Join(names, "\n"+before)); err != nil {
			return err
		}
	}
	return nil
}
