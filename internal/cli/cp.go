package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/treecopy"
)

// copyFlags are the flags of cp.
type copyFlags struct{ archive, follow, force, quiet bool }

func newCp(a *app) *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "cp [flags] CONTAINER:PATH PATH|- | PATH|- CONTAINER:PATH",
		Short: "Copy files to or from a container",
		Long: "Copy files to or from a container, running or not, with its volumes. A directory is copied into an existing directory, or gets the new\n" +
			"name; PATH/. means the directory's content. With - cp reads a tar from standard input, or writes one to standard output.",
		Example: "  longshore cp web:/etc/nginx/nginx.conf .\n" +
			"  longshore cp site/. web:/usr/share/nginx/html\n" +
			"  longshore cp db:/var/lib/data - | gzip > data.tar.gz",
		Args: base.ExactArgs(2, "a source and a destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, fromPath, out := cutContainer(args[0])
			to, toPath, in := cutContainer(args[1])
			switch {
			case in && out:
				return &base.UsageError{Err: errors.New("source and destination are both in containers: copy through a local path, or through a pipe of two cp")}
			case out:
				return a.Call(func(c *base.Client) error { return a.copyOut(cmd.Context(), c, from, fromPath, args[1], f) })
			case in:
				return a.Call(func(c *base.Client) error { return a.copyIn(cmd.Context(), c, args[0], to, toPath, f) })
			}
			return &base.UsageError{Err: errors.New("neither source nor destination is CONTAINER:PATH")}
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&f.archive, "archive", "a", false, "keep users and groups, by their numbers")
	fl.BoolVarP(&f.follow, "follow-link", "L", false, "copy the target of a link at the source instead of the link")
	fl.BoolVar(&f.force, "force", false, "also copy files of other owners' containers")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no effect: cp shows no progress")
	return cmd
}

// cutContainer splits CONTAINER:PATH. An argument that begins with a slash or a dot is a local
// path, which may have a colon.
func cutContainer(arg string) (name, p string, ok bool) {
	if arg == "-" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return "", arg, false
	}
	name, p, ok = strings.Cut(arg, ":")
	if !ok || name == "" {
		return "", arg, false
	}
	return name, p, true
}

// absolute makes a path absolute, and keeps a slash or a dot at its end.
func absolute(p string) (string, error) {
	abs, err := filepath.Abs(p)
	switch {
	case err != nil:
		return "", err
	case p == "." || strings.HasSuffix(p, "/."):
		return strings.TrimSuffix(abs, "/") + "/.", nil
	case strings.HasSuffix(p, "/"):
		return strings.TrimSuffix(abs, "/") + "/", nil
	}
	return abs, nil
}

func (f copyFlags) owners() treecopy.Owners {
	if f.archive {
		return treecopy.Theirs
	}
	return treecopy.Mine
}

func (a *app) copyOut(ctx context.Context, c *base.Client, name, from, to string, f copyFlags) error {
	if _, ok := base.Terminal(a.Stdout); ok && to == "-" {
		return &base.UsageError{Err: errors.New("the tar would go to a terminal: use a file or a pipe")}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Containers.CopyOut(ctx, &longshorev1.CopyOutRequest{Name: name, Path: from, Follow: f.follow, Force: f.force})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	tar := &recvReader{recv: func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetData(), err
	}}
	if to == "-" {
		w := bufio.NewWriterSize(a.Stdout, base.ArchiveChunk)
		if _, err := io.Copy(w, tar); err != nil {
			return err
		}
		return w.Flush()
	}
	if to, err = absolute(to); err != nil {
		return err
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	src := first.GetSource()
	target, err := treecopy.Place(root, to, treecopy.Source{Name: src.GetName(), Dir: src.GetDir(), Contents: src.GetContents()})
	if err != nil {
		return err
	}
	// Links of the container in the tar must not lead out of the directory.
	dir, err := beneath.In(root, target.At, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	target.At = "."
	return treecopy.Unpack(tar, dir, target, f.owners(), treecopy.IDs{})
}

func (a *app) copyIn(ctx context.Context, c *base.Client, from, name, to string, f copyFlags) error {
	target := &longshorev1.CopyTo{Name: name, Path: to, Owners: f.archive || from == "-", Force: f.force}
	pack := func(w io.Writer) error {
		_, err := io.Copy(w, a.Stdin)
		return err
	}
	if from != "-" {
		p, err := absolute(from)
		if err != nil {
			return err
		}
		root, err := os.Open("/")
		if err != nil {
			return err
		}
		defer func() { _ = root.Close() }()
		src, err := treecopy.Look(root, p, f.follow)
		if err != nil {
			return err
		}
		target.Source = &longshorev1.CopySource{Name: src.Name, Dir: src.Dir, Contents: src.Contents}
		pack = func(w io.Writer) error { return treecopy.Pack(w, root, p, src.Name, f.follow, treecopy.IDs{}) }
	}
	stream, err := c.Containers.CopyIn(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.CopyInRequest{To: target}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	w := bufio.NewWriterSize(sendWriter(func(p []byte) error { return stream.Send(&longshorev1.CopyInRequest{Data: p}) }), base.ArchiveChunk)
	err = pack(w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the answer has the reason
		return fmt.Errorf("read %s: %w", from, err)
	}
	_, err = stream.CloseAndRecv()
	return err
}

// sendWriter is a writer that sends its input.
type sendWriter func([]byte) error

func (s sendWriter) Write(p []byte) (int, error) {
	if err := s(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// recvReader reads the data of a stream.
type recvReader struct {
	recv func() ([]byte, error)
	rest []byte
}

func (r *recvReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.recv(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
