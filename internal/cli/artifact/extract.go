package artifact

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// file is a file of an artifact, and its name in the target.
type file struct {
	Name   string        `json:"name"`
	Digest digest.Digest `json:"digest"`
	to     string
}

// extraction says which files go where.
type extraction struct{ title, digest string }

// NewExtract returns the command that copies an artifact's files.
func NewExtract(a *base.App) *cobra.Command {
	var x extraction
	cmd := &cobra.Command{
		Use:   "extract ARTIFACT PATH",
		Short: "Copy the files of an artifact",
		Long: "Copy the files of an artifact into the directory PATH. If PATH is a file or does not exist, one file is copied to it: the artifact\n" +
			"has no other, or --title or --digest selects it. Existing files are overwritten.",
		Args: base.ExactArgs(2, "an artifact and a path"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if x.title != "" && x.digest != "" {
				return &base.UsageError{Err: errors.New("--title and --digest cannot be combined")}
			}
			return a.Call(func(c *base.Client) error { return x.run(cmd.Context(), c, args[0], args[1]) })
		},
	}
	cmd.Flags().StringVar(&x.title, "title", "", "only the file with this name")
	cmd.Flags().StringVar(&x.digest, "digest", "", "only the files with this digest, named by it in a directory")
	return cmd
}

func (x extraction) run(ctx context.Context, c *base.Client, name, target string) error {
	doc, err := c.Images.InspectImage(ctx, &longshorev1.InspectImageRequest{Name: name})
	if err != nil {
		return err
	}
	var record struct {
		ID       string `json:"id"`
		Artifact string `json:"artifact"`
		Files    []file `json:"files"`
	}
	if err := json.Unmarshal(doc.GetJson(), &record); err != nil {
		return fmt.Errorf("read the agent's record: %w", err)
	}
	if record.Artifact == "" {
		return fmt.Errorf("%s is an image and no artifact: create a container of it and copy the files with longshore cp", name)
	}
	dir, files, err := x.choose(record.Files, name, target)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Images.ExportImages(ctx, &longshorev1.ExportImagesRequest{Names: []string{name}})
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	go func() {
		_ = w.CloseWithError(base.Receive(stream.Recv, func(m *longshorev1.ExportImagesResponse) error {
			_, err := w.Write(m.GetData())
			return err
		})) // it never fails
	}()
	return unpack(r, root, files)
}

// choose returns the directory to write to, and the files with their names in it.
func (x extraction) choose(all []file, name, target string) (dir string, files []file, err error) {
	files = slices.DeleteFunc(slices.Clone(all), func(f file) bool {
		return x.title != "" && f.Name != x.title || x.digest != "" && f.Digest.String() != x.digest
	})
	if len(files) == 0 {
		return "", nil, fmt.Errorf("the artifact %s has no such file; longshore artifact inspect shows its files", name)
	}
	if fi, err := os.Stat(target); err == nil && fi.IsDir() {
		for i, f := range files {
			files[i].to = f.Name
			if x.digest != "" {
				files[i].to = strings.ReplaceAll(f.Digest.String(), ":", "-")
			}
		}
		return target, files, nil
	}
	if len(files) > 1 {
		return "", nil, fmt.Errorf("the artifact %s has %d files, and %s is no directory: make it, or select a file with --title or --digest", name, len(files), target)
	}
	files[0].to = filepath.Base(target)
	return filepath.Dir(target), files, nil
}

// unpack writes the files from an archive of an OCI layout. Each is complete at its name, or not there.
func unpack(r io.Reader, root *os.Root, files []file) error {
	left := map[digest.Digest][]file{}
	for _, f := range files {
		left[f.Digest] = append(left[f.Digest], f)
	}
	tr := tar.NewReader(r)
	for len(left) > 0 {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("the archive of the artifact lacks a file: pull it again")
		}
		if err != nil {
			return err
		}
		d := digest.NewDigestFromEncoded(digest.SHA256, path.Base(hdr.Name))
		to, wanted := left[d]
		if !wanted || path.Dir(hdr.Name) != "blobs/sha256" {
			continue
		}
		delete(left, d)
		if err := writeFiles(tr, root, d, to); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles writes one content to all its names.
func writeFiles(r io.Reader, root *os.Root, d digest.Digest, to []file) error {
	const part = ".longshore-part"
	first := to[0].to
	if err := root.MkdirAll(path.Dir(first), 0o755); err != nil {
		return err
	}
	err := writeFile(r, root, d, first+part)
	if err == nil {
		err = root.Rename(first+part, first)
	}
	if err != nil {
		if rerr := root.Remove(first + part); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	for _, f := range to[1:] {
		in, err := root.Open(first)
		if err != nil {
			return err
		}
		err = writeFiles(in, root, d, []file{f})
		_ = in.Close() // it was only read
		if err != nil {
			return err
		}
	}
	return nil
}

func writeFile(r io.Reader, root *os.Root, d digest.Digest, name string) error {
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	sum := d.Verifier()
	_, err = io.Copy(out, io.TeeReader(r, sum))
	if err = errors.Join(err, out.Close()); err == nil && !sum.Verified() {
		err = fmt.Errorf("blob %s has other content: longshore check --images, then pull the artifact again", d)
	}
	return err
}
