package translate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// maxArtifactBinds is how many files of one artifact are mounted one by one.
const maxArtifactBinds = 100

// checkImageMount refuses a mount of an image that contradicts itself.
func checkImageMount(m *longshorev1.ImageMount) error {
	sub := m.GetSubPath()
	switch {
	case m.GetImage() == "":
		return invalid.Errorf("mount %q: a source is needed, the name of an image", m.GetTarget())
	case sub != "" && !filepath.IsLocal(strings.TrimPrefix(sub, "/")):
		return invalid.Errorf("mount %q: sub-path %q leads out of the image", m.GetTarget(), sub)
	case !m.GetArtifact() && m.GetTitle()+m.GetDigest()+m.GetName() != "":
		return invalid.Errorf("mount %q: title, digest and name select files of an artifact, and its type is image", m.GetTarget())
	case m.GetArtifact() && sub != "":
		return invalid.Errorf("mount %q: a sub-path needs the type image; for an artifact select a file by its title or digest", m.GetTarget())
	case m.GetTitle() != "" && m.GetDigest() != "":
		return invalid.Errorf("mount %q: title and digest cannot be combined", m.GetTarget())
	case m.GetName() != "" && (strings.ContainsAny(m.GetName(), "/\x00") || !filepath.IsLocal(m.GetName()) || m.GetName() == "."):
		return invalid.Errorf("mount %q: name %q is no name of a file", m.GetTarget(), m.GetName())
	}
	return nil
}

// imageMounts returns the images that the engine mounts for a request, in its order.
func imageMounts(req *longshorev1.CreateRequest, images []core.Image) ([]core.ImageMount, error) {
	if len(images) != len(req.GetImages()) {
		return nil, invalid.Errorf("mounts of images: %d of %d were found", len(images), len(req.GetImages()))
	}
	var list []core.ImageMount
	for i, m := range req.GetImages() {
		if m.GetArtifact() {
			if images[i].Artifact == "" {
				return nil, invalid.Errorf("mount %q: %s is an image and no artifact: use the type image", m.GetTarget(), m.GetImage())
			}
			if _, err := selected(m, images[i].Files); err != nil {
				return nil, err
			}
		}
		list = append(list, core.ImageMount{Image: images[i].ID, SubPath: m.GetSubPath()})
	}
	return list, nil
}

// imageBinds returns the mounts of images and artifacts in a container with the given root. paths are those of the images on the node.
func imageBinds(req *longshorev1.CreateRequest, images []core.Image, paths []string, root *os.Root) (list []specs.Mount, err error) {
	for i, m := range req.GetImages() {
		binds := []bind{{"", m.GetTarget()}}
		if m.GetArtifact() {
			if binds, err = artifactBinds(m, images[i].Files, root); err != nil {
				return nil, err
			}
		}
		for _, b := range binds {
			mount := ocispec.ImageMount(path.Clean(b.target), i)
			mount.Source = path.Join(paths[i], b.file)
			list = append(list, mount)
		}
	}
	return list, nil
}

// bind is a file of an artifact, or its directory "", and its place in the container.
type bind struct{ file, target string }

// selected returns the files that a mount selects.
func selected(m *longshorev1.ImageMount, files []core.ArtifactFile) ([]core.ArtifactFile, error) {
	found := slices.DeleteFunc(slices.Clone(files), func(f core.ArtifactFile) bool {
		return m.GetTitle() != "" && f.Name != m.GetTitle() || m.GetDigest() != "" && f.Digest.String() != m.GetDigest()
	})
	if len(found) == 0 && m.GetTitle()+m.GetDigest() != "" {
		var names []string
		for _, f := range files[:min(len(files), 8)] {
			names = append(names, fmt.Sprintf("%.100q", f.Name))
		}
		return nil, invalid.Errorf("mount %q: the artifact %s has no file %s%s; it has %d, among them %s",
			m.GetTarget(), m.GetImage(), m.GetTitle(), m.GetDigest(), len(files), strings.Join(names, ", "))
	}
	return found, nil
}

// artifactBinds returns the binds of an artifact's files by podman's rules. A single file is mounted at the target itself, unless the
// target is a directory. Several files are mounted in the target, one by one if it has files of its own.
func artifactBinds(m *longshorev1.ImageMount, files []core.ArtifactFile, root *os.Root) ([]bind, error) {
	found, err := selected(m, files)
	if err != nil {
		return nil, err
	}
	at, err := kindOf(root, m.GetTarget())
	switch {
	case err != nil:
		return nil, err
	case len(found) == 1 && at != emptyDir && at != fullDir:
		return []bind{{found[0].Name, m.GetTarget()}}, nil
	case at == file:
		return nil, invalid.Errorf("mount %q: it is a file, and the artifact %s has %d: select one by its title or digest", m.GetTarget(), m.GetImage(), len(found))
	case at != fullDir && len(found) != 1 && len(found) == len(files) && m.GetName()+m.GetDigest() == "":
		return []bind{{"", m.GetTarget()}}, nil
	case len(found) > maxArtifactBinds:
		return nil, invalid.Errorf("mount %q: %d files cannot be added to a directory with files, at most %d; mount the artifact at a path that the image does not have",
			m.GetTarget(), len(found), maxArtifactBinds)
	}
	var list []bind
	for i, f := range found {
		name := f.Name
		switch {
		case m.GetName() != "" && len(found) > 1:
			name = m.GetName() + "-" + strconv.Itoa(i)
		case m.GetName() != "":
			name = m.GetName()
		case m.GetDigest() != "":
			name = strings.ReplaceAll(f.Digest.String(), ":", "-")
		}
		list = append(list, bind{f.Name, path.Join(m.GetTarget(), name)})
	}
	return list, nil
}

// The kinds of a mount's target in the image.
const (
	missing = iota
	file
	emptyDir
	fullDir
)

// kindOf returns the kind of a path in a container's root. A path with a link out of the root is missing: the runtime decides about it.
func kindOf(root *os.Root, target string) (int, error) {
	name := strings.TrimPrefix(path.Clean("/"+target), "/")
	fi, err := root.Stat(name)
	switch {
	case err != nil:
		return missing, nil
	case !fi.IsDir():
		return file, nil
	}
	dir, err := root.Open(name)
	if err != nil {
		return missing, err
	}
	defer func() { _ = dir.Close() }() // it was only read
	switch _, err = dir.Readdirnames(1); {
	case errors.Is(err, io.EOF):
		return emptyDir, nil
	case err != nil:
		return missing, err
	}
	return fullDir, nil
}
