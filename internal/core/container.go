package core

import (
	"context"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ContainerState is where a container stands; see NextContainer.
type ContainerState string

// The states of a container.
const (
	ContainerCreating ContainerState = "creating"
	ContainerCreated  ContainerState = "created"
	ContainerRunning  ContainerState = "running"
	ContainerPaused   ContainerState = "paused"
	ContainerExited   ContainerState = "exited"
)

// ContainerConfig is what a face asks for.
type ContainerConfig struct {
	Key     Key               `json:"-"`
	Labels  map[string]string `json:"-"`
	Data    []byte            `json:"-"`
	Sandbox ID                `json:"-"`
	// Parent nests this container below another one of the same sandbox: its
	// cgroup stands below the parent's, and it is removed with it.
	Parent  ID            `json:"-"`
	Join    []Join        `json:"join,omitempty"` // single namespaces taken from a sibling
	Cgroup  Cgroup        `json:"cgroup"`         // zero: below the sandbox's (or the parent's)
	Root    Root          `json:"root"`
	Volumes []VolumeMount `json:"volumes,omitempty"`
	// Images are shown beside the root; SpecFunc finds out where they are and
	// says where they go.
	Images []ImageMount `json:"images,omitempty"`
	// CDI names devices of the Container Device Interface, vendor.com/class=name,
	// that an adjuster adds.
	CDI []string `json:"cdi,omitempty"`
	// Spec is called once per create, after the root is there.
	Spec SpecFunc `json:"-"`
	IO   IO       `json:"io"`
	Stop Stop     `json:"stop"`
	// Init runs the program below the tiny init, which reaps and forwards
	// signals.
	Init bool `json:"init,omitempty"`
	// Run lets the program run as soon as it can, which saves asking for that. A
	// program that cannot be started fails the create.
	Run bool `json:"run,omitempty"`
}

// Join takes one namespace from another container of the same sandbox.
type Join struct {
	Namespace specs.LinuxNamespaceType `json:"namespace"`
	Container ID                       `json:"container"`
}

// Root says where the root filesystem comes from; exactly one of Image, Dir and
// Mounts is set.
type Root struct {
	Image    digest.Digest `json:"image,omitempty"`  // an image's ID; the engine checks out a layer of the container's own
	Dir      string        `json:"dir,omitempty"`    // a directory that the face prepared
	Below    string        `json:"below,omitempty"`  // a directory above Dir that is trusted: what is between is resolved through no link, when it is mounted
	Mounts   []Mount       `json:"mounts,omitempty"` // mounts to stack in order
	ReadOnly bool          `json:"read_only,omitempty"`
}

// Mount is one mount(2): Target is relative to where the whole is mounted.
type Mount struct {
	Type    string   `json:"type"`
	Source  string   `json:"source"`
	Target  string   `json:"target,omitempty"`
	Options []string `json:"options,omitempty"`
	// UIDs and GIDs, when set, map the owners of what an overlay's lower
	// layers hold, as a user namespace with these mappings is to see them.
	UIDs []IDRange `json:"uids,omitempty"`
	GIDs []IDRange `json:"gids,omitempty"`
}

// VolumeMount places a named volume of the container's owner in its root. A
// volume that does not exist yet is made, and filled from the image's content
// at Target unless NoCopy.
type VolumeMount struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	NoCopy   bool   `json:"no_copy,omitempty"`
}

// ImageMount is an image, or what lies at SubPath in it, to be read.
type ImageMount struct {
	Image   digest.Digest `json:"image"` // an image's ID
	SubPath string        `json:"sub_path,omitempty"`
}

// SpecFunc builds the OCI spec, and what the face keeps of it, once the root exists, so that user names and the
// image's config can be resolved inside it. The engine then overwrites what it
// owns: ociVersion, root.path, the sandbox's namespaces, cgroupsPath, the tiny
// init, volumes, and whatever the adjusters change. The data takes the place of
// ContainerConfig.Data, unless it is nil.
type SpecFunc func(ctx context.Context, r Rootfs) (s *specs.Spec, data []byte, err error)

// Rootfs is what a SpecFunc may look at.
type Rootfs struct {
	FS    *os.Root             // a view that cannot be left, not even through symlinks
	Image *ocispec.ImageConfig // nil unless Root.Image
	// Sandbox is the sandbox as it is now: namespaces, Dir, network.
	Sandbox Sandbox
	// ReadOnly says that the container may not write to its root, which is a layer
	// of its own.
	ReadOnly bool
	// ID is the container's ID.
	ID ID
	// Images are the paths on the host of ContainerConfig.Images, mounted
	// read-only.
	Images []string
}

// Stop says how a container is asked to end. The zero value is SIGTERM (or what
// the image says) and no grace.
type Stop struct {
	Signal string        `json:"signal,omitempty"` // "SIGTERM", "TERM" or a number
	Grace  time.Duration `json:"grace,omitempty"`
}

// Container is a root filesystem, an OCI spec and a main process, in a sandbox.
type Container struct {
	Meta
	Config  ContainerConfig `json:"config"`
	Sandbox ID              `json:"sandbox"`
	Parent  ID              `json:"parent,omitempty"`
	State   ContainerState  `json:"state"`
	Main    Process         `json:"main"`
	Execs   []Process       `json:"execs,omitempty"`
	// Exits are those of execs that were started with KeepExit and whose records are
	// gone, the newest last. The engine keeps a bounded number of them.
	Exits   []KeptExit `json:"exits,omitempty"`
	Bundle  string     `json:"bundle,omitempty"`
	Runtime string     `json:"runtime,omitempty"` // the runtime that runs it, by its name in the config
	Cgroup  CgroupRef  `json:"cgroup"`
	// Refused is set when the runtime has refused the program while it made the
	// container: it has no process, and cannot be started.
	Refused *Refusal `json:"refused,omitempty"`
	// Removing says that its removal has begun: nothing can be done with it
	// any more, and recovery goes on where a crash has ended it.
	Removing bool `json:"removing,omitempty"`
	// Image is the ID of the image checked out, "" for other roots.
	Image    digest.Digest `json:"image,omitempty"`
	Warnings []string      `json:"warnings,omitempty"` // what the node could not give, said once at create
}

// Refusal is a program that cannot be executed.
type Refusal struct {
	Errno int    `json:"errno"`
	Text  string `json:"text"` // the runtime's words
}

// Process returns the process named id, or nil.
func (c *Container) Process(id ProcessID) *Process {
	if id == Main {
		return &c.Main
	}
	for i := range c.Execs {
		if c.Execs[i].ID == id {
			return &c.Execs[i]
		}
	}
	return nil
}
