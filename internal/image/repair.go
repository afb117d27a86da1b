package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/image/worker"
)

// Repair repairs the damaged names.db of a closed store in root. With dry it only returns what it
// would do. It names lost images by their blobs.
func Repair(root string, log *slog.Logger, dry bool) (dbfile.Report, error) {
	r, err := dbfile.Repair(dbOptions(root, log), dry)
	if err != nil || r.Damage == "" || r.Whole {
		return r, err
	}
	r.Lost, err = lostImages(root, &r)
	return r, err
}

// maxManifest is how large a blob may be that is read as a manifest.
const maxManifest = 4 << 20

// lostImages names the images with a manifest and no record, or with a record and no name.
func lostImages(root string, r *dbfile.Report) (lost []string, err error) {
	named := map[digest.Digest]bool{}
	var records []imageRecord
	r.Each(func(bucket []string, _ string, value []byte) {
		var n nameRecord
		var rec imageRecord
		switch {
		case len(bucket) == 3 && bucket[2] == string(bucketNames) && json.Unmarshal(value, &n) == nil:
			named[n.Manifest] = true
		case bucket[0] == string(bucketImages) && json.Unmarshal(value, &rec) == nil:
			records = append(records, rec)
		}
	})
	for _, rec := range records {
		if !named[rec.Manifest.Digest] {
			lost = append(lost, fmt.Sprintf("all names of the image %s (manifest %s): pull it again by its name", rec.ID, rec.Manifest.Digest))
		}
	}
	dir := filepath.Join(root, worker.ContentDir, "blobs", string(digest.SHA256))
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return lost, fmt.Errorf("repair names.db: %w", err)
	}
	for _, f := range files {
		d := digest.NewDigestFromEncoded(digest.SHA256, f.Name())
		if d.Validate() != nil || r.Has(string(d), string(bucketImages)) {
			continue
		}
		body, err := atomicfile.Read(filepath.Join(dir, f.Name()), maxManifest)
		if err != nil || digest.FromBytes(body) != d {
			continue // it is a layer, or damaged
		}
		var m struct {
			Config *ocispec.Descriptor
			Layers []ocispec.Descriptor
		}
		if json.Unmarshal(body, &m) == nil && m.Config != nil && len(m.Layers) > 0 {
			lost = append(lost, fmt.Sprintf("the image %s (manifest %s): pull it again by its name", m.Config.Digest, d))
		}
	}
	slices.Sort(lost)
	return append(lost, "names of images that have others, if they stood in the damaged places: `longshore images` shows the others"), nil
}
