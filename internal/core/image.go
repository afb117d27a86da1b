package core

import (
	"errors"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image in the store, as one owner sees it.
type Image struct {
	// ID is the digest of the image's config. It stays the same when names change.
	ID digest.Digest
	// Digest is the digest of the manifest for this platform.
	Digest digest.Digest
	// ManifestSize is the size of that manifest in bytes.
	ManifestSize int64
	Names        []string // full names with tag, docker.io/library/redis:latest
	Digests      []string // full names with digest, docker.io/library/redis@sha256:…
	Size         int64    // bytes in the content store, compressed
	Unpacked     int64    // bytes of the unpacked layers; 0 when unknown
	Layers       []int64  // bytes of each unpacked layer, the lowest first
	Config       ocispec.Image
	// Health is the image's own health check, nil for none. Shell is the command that runs
	// its command lines, nil for /bin/sh -c. Only Docker's configs have these two.
	Health *HealthCheck
	Shell  []string
	// OnBuild are the instructions for builds on top of the image. Only Docker's configs have them.
	OnBuild []string
	// Wasm says that the image's program is a WebAssembly module.
	Wasm bool
	// Annotations are those of the manifest that say how the program is to run, or all of an artifact's.
	Annotations map[string]string
	Pulled      time.Time
	Pinned      bool // Prune never removes it
	// Artifact is the type of an OCI artifact, which has files in place of a root filesystem and can
	// only be mounted; "" for an image. Files are its files, in the order of its manifest.
	Artifact string
	Files    []ArtifactFile
}

// ArtifactFile is a file of an artifact.
type ArtifactFile struct {
	Name      string // its path in the volume
	Digest    digest.Digest
	Size      int64
	MediaType string
}

// HealthCheck says how to test whether a container's program works. A zero duration or number of
// retries means the checker's default.
type HealthCheck struct {
	// Test is empty for the image's own check, "NONE" for none, "CMD" with a command,
	// or "CMD-SHELL" with a line for the shell.
	Test          []string      `json:",omitempty"`
	Interval      time.Duration `json:",omitempty"`
	Timeout       time.Duration `json:",omitempty"`
	StartPeriod   time.Duration `json:",omitempty"` // during it failures do not count
	StartInterval time.Duration `json:",omitempty"` // between checks in StartPeriod
	Retries       int           `json:",omitempty"` // failures in a row that make it unhealthy
}

// PullOptions are the options of one pull. Credentials are used for it and not stored.
type PullOptions struct {
	Platform string // "linux/arm64"; "": the node's own
	Host     string // the credentials are for this registry only; "": for that of the name
	Username string
	Password string
	Token    string // an identity (refresh) token
	Bearer   string // a registry token sent as it is
	// Always asks the registry even when the store has the name.
	Always   bool
	Pin      bool // pin the image for this owner, as Images.Pin does
	Progress func(PullProgress)
}

// PullUnderway is a pull that has not ended.
type PullUnderway struct {
	Owner  Owner
	Ref    string // as the caller named the image
	Began  time.Time
	Status string // of the whole, as in PullProgress
	Blobs  []PullProgress
}

// PushOptions are the options of one push. Credentials are used for it and not stored.
type PushOptions struct {
	Target   string // the name to push to; "": the image's own
	Host     string // the credentials are for this registry only; "": for that of the name
	Username string
	Password string
	Token    string // an identity (refresh) token
	Bearer   string // a registry token sent as it is
	Progress func(PullProgress)
}

// RemoteImage is an image as a registry describes it.
type RemoteImage struct {
	Target    ocispec.Descriptor // the manifest or index that the name refers to
	Platforms []ocispec.Platform
}

// RootImport describes the image to make of a root file system.
type RootImport struct {
	Name     string   // "": none
	Message  string   // for its history
	Changes  []string // instructions of a Dockerfile
	Platform string   // "linux/arm64"; "": the node's own
}

// ImportOptions select images of an archive. The zero ImportOptions import every image under the
// names that the archive has for it.
type ImportOptions struct {
	// Only imports one image: the one of that name, or the archive's only one when that has no
	// name. It gets no name in the store, because the archive's author must not name images for
	// others. A node with an image policy refuses it, because an archive contains no proof of an
	// image's origin.
	Only string
}

// FileChange is a file that differs from the image's.
type FileChange struct {
	Path string // absolute
	Kind string // A: added, C: changed, D: deleted
}

// RootUse says how a container uses its root.
type RootUse struct {
	UIDs   []IDRange
	GIDs   []IDRange // of its user namespace, as in its CheckoutRequest
	Mounts []string  // places of its mounts and of files from the engine
}

// CommitRequest asks for an image made of a container.
type CommitRequest struct {
	Container ID
	Name      string // of the image; "": none
	Use       RootUse
	// Config makes the image's config of that of the container's image, and of the digest of the
	// uncompressed new layer.
	Config func(base []byte, diff digest.Digest) ([]byte, error)
}

// ErrImageRefused is the error of a pull that the node's image policy refuses. Nothing of the
// image is kept. Its class is FailedPrecondition.
var ErrImageRefused = errors.New("the image is refused by policy")

// PullProgress is the progress of one blob, or of the whole pull when Blob is empty.
type PullProgress struct {
	Blob digest.Digest
	// Status is resolving, verifying, waiting, downloading, unpacking, exists or done; of a push waiting, uploading, pushed or exists.
	// The blobs of a pull or push are first reported as waiting, in the manifest's order.
	Status string
	Done   int64
	Total  int64
}

// CheckoutRequest asks for a container's root filesystem.
type CheckoutRequest struct {
	Container ID
	Image     digest.Digest // Image.ID
	ReadOnly  bool
	UIDs      []IDRange // set when a user namespace with this mapping will use the layer
	GIDs      []IDRange
	// Durable keeps the container's layer over a boot, with all data that its programs have synced.
	Durable bool
	// Disk is how many bytes the container's own layer may have, if the file system can limit that; 0 is no limit. It does not
	// affect a layer that exists.
	Disk int64
}

// IDRange maps Size ids, from Container on inside a user namespace to Host on outside.
type IDRange struct{ Container, Host, Size uint32 }

// Checkout is a root filesystem that can be mounted.
type Checkout struct {
	Mounts []Mount
	Config ocispec.Image
}
