package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
)

// Chain is the name of an artifact's directory among the layers of images. It is derived from the
// manifest's digest, and never equal to a digest of content.
func Chain(manifest digest.Digest) digest.Digest {
	return digest.FromString("artifact " + manifest.String())
}

// Store has the blobs and directories, all as paths below Root.
type Store struct {
	Root string
	// Blob returns the path of a blob.
	Blob func(digest.Digest) string
}

// Link makes the directory dir with the files of an artifact, and returns the number of directories.
// Preconditions: all blobs exist. It neither reads nor copies their bytes, with one exception: if a
// blob has as many links as its filesystem allows, the file is a copy.
func (s Store) Link(dir string, files []core.ArtifactFile) (dirs int64, err error) {
	root, err := os.OpenRoot(s.Root)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	made := map[string]bool{}
	if err := makeDir(root, dir, made); err != nil {
		return 0, err
	}
	for _, f := range files {
		to := path.Join(dir, f.Name)
		if err := makeDirs(root, dir, path.Dir(to), made); err != nil {
			return 0, fmt.Errorf("file %q: %w", f.Name, err)
		}
		if err := s.link(root, f, to); err != nil {
			return 0, err
		}
	}
	return int64(len(made)), nil
}

// makeDirs makes the directories of a path below top.
func makeDirs(root *os.Root, top, dir string, made map[string]bool) error {
	if dir == top || dir == "." || made[dir] {
		return nil
	}
	if err := makeDirs(root, top, path.Dir(dir), made); err != nil {
		return err
	}
	if err := makeDir(root, dir, made); !errors.Is(err, fs.ErrExist) { // a filesystem may ignore case
		return err
	}
	return nil
}

func makeDir(root *os.Root, dir string, made map[string]bool) error {
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	made[dir] = true
	return root.Chmod(dir, 0o755) // independent of the umask
}

// link makes one file. Every user of a container may read it, and nobody may write to or execute it.
func (s Store) link(root *os.Root, f core.ArtifactFile, to string) error {
	from := s.Blob(f.Digest)
	err := root.Chmod(from, 0o444)
	if err == nil {
		err = root.Link(from, to)
	}
	if errors.Is(err, syscall.EMLINK) {
		err = copyFile(root, from, to)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("file %q: this filesystem has it already under another spelling of its name: %w", f.Name, errdefs.ErrInvalidArgument)
	case err != nil:
		return fmt.Errorf("file %q: %w", f.Name, err)
	}
	return nil
}

func copyFile(root *os.Root, from, to string) error {
	in, err := root.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o444), out.Close())
}

// Relink replaces the files of dir that are not their blobs any more, because a missing blob was
// fetched into a new file. Containers that have the old file open keep it.
func (s Store) Relink(dir string, files []core.ArtifactFile) error {
	root, err := os.OpenRoot(s.Root)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range files {
		to := path.Join(dir, f.Name)
		if same(root, s.Blob(f.Digest), to) {
			continue
		}
		const tmp = ".longshore-relink"
		part := dir + tmp // beside the directory, where no artifact has files
		if err := root.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.link(root, f, part); err != nil {
			return err
		}
		if err := root.Rename(part, to); err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
	}
	return nil
}

func same(root *os.Root, blob, file string) bool {
	a, err := root.Lstat(blob)
	if err != nil {
		return false
	}
	b, err := root.Lstat(file)
	return err == nil && os.SameFile(a, b)
}

func hasContent(root *os.Root, file string, want digest.Digest) bool {
	f, err := root.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	got, err := digest.SHA256.FromReader(f)
	return err == nil && got == want
}

// Verify returns the differences between dir and the files of an artifact: further files, missing
// ones, and those that are not their blobs. The caller verifies the blobs by their digests.
func (s Store) Verify(dir string, files []core.ArtifactFile) (faults []string, err error) {
	root, err := os.OpenRoot(s.Root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	known := map[string]bool{}
	for _, f := range files {
		known[f.Name] = true
		to := path.Join(dir, f.Name)
		fi, err := root.Lstat(to)
		switch {
		case err != nil || !fi.Mode().IsRegular() || fi.Size() != f.Size:
			faults = append(faults, fmt.Sprintf("%q is missing or has another size", f.Name))
		case same(root, s.Blob(f.Digest), to):
		case !hasContent(root, to, f.Digest): // the blob was removed, or the file is a copy
			faults = append(faults, fmt.Sprintf("%q has other content than the blob %s", f.Name, f.Digest))
		}
	}
	err = fs.WalkDir(root.FS(), dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, rerr := filepath.Rel(dir, p)
		if rerr != nil {
			return rerr
		}
		if !e.IsDir() && !known[name] {
			faults = append(faults, fmt.Sprintf("%q is not of the artifact", name))
		}
		return nil
	})
	return faults, err
}
