package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
)

// names.db holds the records that must outlive a power cut: every transaction is synced before it
// counts. Everything is kept in memory as well and read from there.
//
//	meta    version → "1"
//	images  manifest digest → imageRecord
//	layers  chain ID → layerRecord
//	leases  lease ID → leaseRecord, of pulls that have not ended
//	owners  owner → names → name → nameRecord
//	                pins → image ID → "1"
//	dirs    (its sequence numbers the layer directories)
const schemaVersion = "1"

// imageRecord is an image with content and layers on disk.
type imageRecord struct {
	ID       digest.Digest        `json:"id"` // the config's digest, or of an artifact and a module with no config of its own the manifest's
	Manifest ocispec.Descriptor   `json:"manifest"`
	Config   ocispec.Descriptor   `json:"config"`
	Blobs    []ocispec.Descriptor `json:"blobs"`
	Chains   []digest.Digest      `json:"chains"` // lowest first
	Pulled   time.Time            `json:"pulled"`
	// Annotations are those of the manifest that say how the program is to run.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Artifact is the type of an artifact: Chains has one layer then, of links to the blobs.
	Artifact string `json:"artifact,omitempty"`
}

func (r *imageRecord) size() int64 {
	n := r.Manifest.Size + r.Config.Size
	for _, b := range r.Blobs {
		n += b.Size
	}
	return n
}

// all returns the blobs of the image.
func (r *imageRecord) all() []digest.Digest {
	list := []digest.Digest{r.Manifest.Digest, r.Config.Digest}
	for _, b := range r.Blobs {
		list = append(list, b.Digest)
	}
	return list
}

// layerRecord is an unpacked layer.
type layerRecord struct {
	Dir    string        `json:"dir"`
	DiffID digest.Digest `json:"diff_id"`
	Bytes  int64         `json:"bytes"`
	Inodes int64         `json:"inodes"`
	Opaque bool          `json:"opaque,omitempty"`
	Links  bool          `json:"links,omitempty"` // of an artifact
	// Damaged says that Verify has found it so: a pull unpacks it again, in another directory.
	Damaged bool `json:"damaged,omitempty"`
}

// nameRecord is the target of an owner's name. The name is full: with a tag
// (docker.io/library/redis:latest), with a digest (…/redis@sha256:…), or, for an image that has
// neither, "@" and the manifest's digest.
type nameRecord struct {
	Manifest digest.Digest `json:"manifest"`
	Target   digest.Digest `json:"target"` // manifest or index
	At       time.Time     `json:"at"`
	// Asked says that a digest name was itself asked for, and did not merely come with a tag.
	Asked bool `json:"asked,omitempty"`
}

// leaseRecord keeps the content of an unfinished pull across a restart.
type leaseRecord struct {
	Blobs   []digest.Digest `json:"blobs"`
	Expires time.Time       `json:"expires"`
}

type ownerRecord struct {
	names map[string]nameRecord
	pins  map[digest.Digest]bool
}

// records is the content of names.db. Readers hold Store.mu.
type records struct {
	root            string // of the store
	defaultRegistry string
	images          map[digest.Digest]*imageRecord
	layers          map[digest.Digest]layerRecord
	leases          map[string]leaseRecord
	owners          map[core.Owner]*ownerRecord
}

var (
	bucketMeta   = []byte("meta")
	bucketImages = []byte("images")
	bucketLayers = []byte("layers")
	bucketLeases = []byte("leases")
	bucketOwners = []byte("owners")
	bucketDirs   = []byte("dirs")
	bucketNames  = []byte("names")
	bucketPins   = []byte("pins")
	keyVersion   = []byte("version")
)

// dbOptions returns how names.db is opened.
func dbOptions(root string, log *slog.Logger) dbfile.Options {
	return dbfile.Options{
		Path: filepath.Join(root, "names.db"), Logger: log, Accept: acceptDB, Valid: validRecord,
		Loss: "the node has no images: each must be pulled again. Containers that run keep their files",
	}
}

func acceptDB(tx *bolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return nil
	}
	if v := meta.Get(keyVersion); v != nil && string(v) != schemaVersion {
		return fmt.Errorf("its format is version %s, this program supports version %s: %w", v, schemaVersion, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// validRecord reports whether an entry of names.db can be read.
func validRecord(bucket []string, key, value []byte) bool {
	switch name := bucket[0]; {
	case name == string(bucketMeta):
		return string(key) == string(keyVersion) && len(value) > 0
	case name == string(bucketImages):
		var r imageRecord
		return json.Unmarshal(value, &r) == nil && r.Manifest.Digest.String() == string(key) && r.ID.Validate() == nil
	case name == string(bucketLayers):
		var r layerRecord
		return json.Unmarshal(value, &r) == nil && r.Dir != "" && filepath.Base(r.Dir) == r.Dir
	case name == string(bucketLeases):
		return json.Unmarshal(value, new(leaseRecord)) == nil
	case name == string(bucketOwners) && len(bucket) == 3 && bucket[2] == string(bucketNames):
		return json.Unmarshal(value, new(nameRecord)) == nil
	case name == string(bucketOwners) && len(bucket) == 3:
		return bucket[2] == string(bucketPins)
	}
	return bucket[0] == string(bucketDirs)
}

func openDB(root string, log *slog.Logger, full func() bool) (*dbfile.DB, error) {
	o := dbOptions(root, log)
	o.Full = full
	db, err := dbfile.Open(o)
	if err != nil {
		return nil, err
	}
	fresh := false
	err = db.View(func(tx *bolt.Tx) error {
		fresh = tx.Bucket(bucketMeta) == nil || tx.Bucket(bucketMeta).Get(keyVersion) == nil
		return nil
	})
	if err == nil && fresh {
		err = db.Update(func(tx *dbfile.Tx) error {
			return tx.Put(string(keyVersion), []byte(schemaVersion), string(bucketMeta))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("open names.db: %w", errors.Join(err, db.Close()))
	}
	return db, nil
}

func load(db *dbfile.DB, root, defaultRegistry string) (*records, error) {
	r := &records{
		root: root, defaultRegistry: defaultRegistry,
		images: map[digest.Digest]*imageRecord{}, layers: map[digest.Digest]layerRecord{},
		leases: map[string]leaseRecord{}, owners: map[core.Owner]*ownerRecord{},
	}
	err := db.View(func(tx *bolt.Tx) error {
		return errors.Join(
			each(tx.Bucket(bucketImages), func(k string, v imageRecord) { r.images[digest.Digest(k)] = &v }),
			each(tx.Bucket(bucketLayers), func(k string, v layerRecord) { r.layers[digest.Digest(k)] = v }),
			each(tx.Bucket(bucketLeases), func(k string, v leaseRecord) { r.leases[k] = v }),
			r.loadOwners(tx.Bucket(bucketOwners)),
		)
	})
	if err != nil {
		return nil, fmt.Errorf("read names.db: %w: %w", errdefs.ErrDataLoss, err)
	}
	return r, nil
}

// loadOwners reads the bucket of all owners, which is nil on a new node.
func (r *records) loadOwners(owners *bolt.Bucket) error {
	if owners == nil {
		return nil
	}
	return owners.ForEachBucket(func(name []byte) error {
		b := owners.Bucket(name)
		o := r.owner(core.Owner(name))
		if pins := b.Bucket(bucketPins); pins != nil {
			if err := pins.ForEach(func(k, _ []byte) error { o.pins[digest.Digest(k)] = true; return nil }); err != nil {
				return err
			}
		}
		return each(b.Bucket(bucketNames), func(k string, v nameRecord) { o.names[k] = v })
	})
}

// each reads a bucket; nil is an empty one.
func each[T any](b *bolt.Bucket, f func(key string, v T)) error {
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		var t T
		if err := json.Unmarshal(v, &t); err != nil {
			return fmt.Errorf("record %q: %w", k, err)
		}
		f(string(k), t)
		return nil
	})
}

func (r *records) owner(o core.Owner) *ownerRecord {
	if r.owners[o] == nil {
		r.owners[o] = &ownerRecord{names: map[string]nameRecord{}, pins: map[digest.Digest]bool{}}
	}
	return r.owners[o]
}

// change is a set of writes that are made together: in the database, then in memory.
type change struct {
	db  []func(tx *dbfile.Tx) error
	mem []func(r *records)
}

func (c *change) put(bucket []byte, key string, v any, mem func(r *records)) {
	c.db = append(c.db, func(tx *dbfile.Tx) error { return putJSON(tx, key, v, string(bucket)) })
	c.mem = append(c.mem, mem)
}

func (c *change) drop(bucket []byte, key string, mem func(r *records)) {
	c.db = append(c.db, func(tx *dbfile.Tx) error { return tx.Delete(key, string(bucket)) })
	c.mem = append(c.mem, mem)
}

func (c *change) putImage(rec *imageRecord) {
	c.put(bucketImages, rec.Manifest.Digest.String(), rec, func(r *records) { r.images[rec.Manifest.Digest] = rec })
}

func (c *change) putLayer(chain digest.Digest, rec layerRecord) {
	c.put(bucketLayers, chain.String(), rec, func(r *records) { r.layers[chain] = rec })
}

func (c *change) putName(o core.Owner, name string, rec nameRecord) {
	c.db = append(c.db, func(tx *dbfile.Tx) error {
		return putJSON(tx, name, rec, string(bucketOwners), string(o), string(bucketNames))
	})
	c.mem = append(c.mem, func(r *records) { r.owner(o).names[name] = rec })
}

func (c *change) dropName(o core.Owner, name string) {
	c.db = append(c.db, func(tx *dbfile.Tx) error {
		return tx.Delete(name, string(bucketOwners), string(o), string(bucketNames))
	})
	c.mem = append(c.mem, func(r *records) { delete(r.owner(o).names, name) })
}

func (c *change) pin(o core.Owner, id digest.Digest, pinned bool) {
	c.db = append(c.db, func(tx *dbfile.Tx) error {
		bucket := []string{string(bucketOwners), string(o), string(bucketPins)}
		if pinned {
			return tx.Put(id.String(), []byte("1"), bucket...)
		}
		return tx.Delete(id.String(), bucket...)
	})
	c.mem = append(c.mem, func(r *records) {
		if pinned {
			r.owner(o).pins[id] = true
		} else {
			delete(r.owner(o).pins, id)
		}
	})
}

func (c *change) empty() bool { return len(c.db) == 0 }

func putJSON(tx *dbfile.Tx, key string, v any, bucket ...string) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Put(key, data, bucket...)
}

// commit makes the writes of c. Preconditions: s.write is held, s.mu is not.
func (s *Store) commit(c *change) error {
	if c.empty() {
		return nil
	}
	err := s.db.Update(func(tx *dbfile.Tx) error {
		for _, f := range c.db {
			if err := f(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write names.db: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range c.mem {
		f(s.rec)
	}
	return nil
}

// namesOf returns the owner's names of a set of manifests. Preconditions: s.mu.
func (o *ownerRecord) namesOf(manifests map[digest.Digest]bool) map[string]nameRecord {
	found := maps.Clone(o.names)
	maps.DeleteFunc(found, func(_ string, n nameRecord) bool { return !manifests[n.Manifest] })
	return found
}
