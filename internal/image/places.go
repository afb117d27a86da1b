package image

import (
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/worker"
)

// Places says which images need the files of the store. Paths are relative to its root.
type Places struct {
	Images map[digest.Digest]PlacedImage // by the digest of the manifest
	Paths  map[string][]digest.Digest    // of a layer's directory, a layer's list or a blob: its images, in order
}

// PlacedImage is an image with the names that its owners have for it.
type PlacedImage struct {
	ID    digest.Digest
	Names map[core.Owner][]string
}

// PlacesOf returns which images need which files. It reads no file.
func PlacesOf(s *Store) Places {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := Places{Images: map[digest.Digest]PlacedImage{}, Paths: map[string][]digest.Digest{}}
	for manifest, rec := range s.rec.images {
		p.Images[manifest] = PlacedImage{rec.ID, map[core.Owner][]string{}}
		add := func(path string) { p.Paths[path] = append(p.Paths[path], manifest) }
		for _, b := range rec.all() {
			add(filepath.Join(worker.ContentDir, "blobs", "sha256", b.Encoded()))
		}
		for _, c := range rec.Chains {
			if l, ok := s.rec.layers[c]; ok {
				add(filepath.Join(worker.LayerDir, l.Dir))
			}
		}
	}
	for owner, o := range s.rec.owners {
		for name, n := range o.names {
			if img, ok := p.Images[n.Manifest]; ok {
				img.Names[owner] = append(img.Names[owner], name)
			}
			if index := filepath.Join(worker.ContentDir, "blobs", "sha256", n.Target.Encoded()); n.Target != n.Manifest {
				p.Paths[index] = append(p.Paths[index], n.Manifest)
			}
		}
	}
	for path, images := range p.Paths {
		slices.Sort(images)
		p.Paths[path] = slices.Compact(images)
	}
	for _, img := range p.Images {
		for _, names := range img.Names {
			slices.Sort(names)
		}
	}
	return p
}
