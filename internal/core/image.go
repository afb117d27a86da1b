package core

import (
	"errors"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image in the store as one owner sees it.
type Image struct {
	// ID is the digest of the image's config, the name that outlives tags.
	ID digest.Digest
	// Digest is that of the manifest this platform uses.
	Digest   digest.Digest
	Names    []string // full names with tag, docker.io/library/redis:latest
	Digests  []string // full names with digest, docker.io/library/redis@sha256:…
	Size     int64    // bytes in the content store, compressed
	Unpacked int64    // bytes of the unpacked layers; 0 when not known
	Config   ocispec.Image
	Pulled   time.Time
	Pinned   bool // never taken by Prune
}

// PullOptions goes with one pull. Credentials are used and never kept.
type PullOptions struct {
	Platform string // "linux/arm64"; "": the node's own
	Username string
	Password string
	Token    string // an identity (refresh) token
	Bearer   string // a registry token sent as it is
	// Always asks the registry even when the name is in the store.
	Always   bool
	Pin      bool // mark the image as pinned for this owner
	Progress func(PullProgress)
}

// ErrImageRefused is what a pull has that the node's policy refuses: nothing of
// the image is kept. Its class is FailedPrecondition.
var ErrImageRefused = errors.New("the image is refused by policy")

// PullProgress is one step of one blob, or of the whole when Blob is empty.
type PullProgress struct {
	Blob   digest.Digest
	Status string // resolving, downloading, unpacking, exists, done
	Done   int64
	Total  int64
}

// CheckoutRequest asks for a root filesystem.
type CheckoutRequest struct {
	Container ID
	Image     digest.Digest // Image.ID
	ReadOnly  bool
	UIDs      []IDRange // a user namespace's, when the layer must be seen through it
	GIDs      []IDRange
}

// IDRange maps Size ids from Container inside to Host outside.
type IDRange struct{ Container, Host, Size uint32 }

// Checkout is a root filesystem that can be mounted.
type Checkout struct {
	Mounts []Mount
	Config ocispec.Image
}
