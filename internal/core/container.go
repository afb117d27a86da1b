package core

import (
	"cmp"
	"context"
	"encoding/base64"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ContainerState is a step in a container's life; NextContainer says which may follow.
type ContainerState string

// The states of a container.
const (
	ContainerCreating ContainerState = "creating"
	ContainerCreated  ContainerState = "created"
	ContainerRunning  ContainerState = "running"
	ContainerPaused   ContainerState = "paused"
	// ContainerAsleep is a container that is frozen and has given its memory back.
	ContainerAsleep ContainerState = "asleep"
	ContainerExited ContainerState = "exited"
)

// Live reports whether the program of a container in this state was started and has not ended.
func (s ContainerState) Live() bool {
	return s == ContainerRunning || s == ContainerPaused || s == ContainerAsleep
}

// Runs reports whether a container in this state can be used: it runs, or it sleeps and wakes for it.
func (s ContainerState) Runs() bool { return s == ContainerRunning || s == ContainerAsleep }

// ContainerConfig is a face's request for a container.
type ContainerConfig struct {
	Key     Key               `json:"-"`
	Labels  map[string]string `json:"-"`
	Data    []byte            `json:"-"`
	Sandbox ID                `json:"-"`
	// Parent nests this container below another one of the same sandbox: removing the parent
	// removes it. Its cgroup is the parent's sibling, because cgroup v2 allows none below a
	// cgroup that has processes.
	Parent ID     `json:"-"`
	Join   []Join `json:"join,omitempty"` // single namespaces taken from a sibling
	// Own names namespaces that the container has for itself although its sandbox shares them. Each
	// is new and empty: an own network has no interface that is up, and the sandbox keeps its
	// addresses and ports.
	Own []specs.LinuxNamespaceType `json:"own,omitempty"`
	// Runtime is the handler that runs this container when it is another one than its sandbox's; ""
	// is the sandbox's. A runtime that is named is never replaced by another one.
	Runtime string `json:"runtime,omitempty"`
	// Identity identifies the program to rules about programs and to other programs.
	Identity Identity `json:"identity,omitzero"`
	// Grants is for a program that holds only its descriptors.
	Grants GrantAsk `json:"grants,omitzero"`
	Cgroup Cgroup   `json:"cgroup"` // zero: below the sandbox's
	Root   Root     `json:"root"`
	// FileLabel is the SELinux label of all files in the root and in the mounted Images.
	FileLabel string `json:"file_label,omitempty"`
	// Labelled gives the container the SELinux labels of its sandbox, if its root is an image's.
	Labelled bool          `json:"labelled,omitempty"`
	Volumes  []VolumeMount `json:"volumes,omitempty"`
	// Images are mounted on the host, read-only. The SpecFunc gets their paths and decides where
	// they appear in the container.
	Images []ImageMount `json:"images,omitempty"`
	// CDI names devices of the Container Device Interface, vendor.com/class=name, that a policy
	// adds to the spec.
	CDI []string `json:"cdi,omitempty"`
	// Spec makes the OCI spec. The engine calls it once per create, when the root exists.
	Spec SpecFunc `json:"-"`
	IO   IO       `json:"io"`
	Stop Stop     `json:"stop"`
	// Restart is applied if Options.Restarts of the engine is set.
	Restart RestartPolicy `json:"restart,omitzero"`
	// Durable containers outlive a boot, with their record and their writable layer: they have then
	// ended. Their sandbox is durable too.
	Durable bool `json:"durable,omitempty"`
	// Disk is how many bytes the container may write into its root, if that is an image's; 0 is no limit. The file system
	// enforces it by a project quota if it has one. Otherwise the space is measured, and a container with more is killed.
	Disk int64 `json:"disk,omitempty"`
	// Init runs the program below the tiny init, which reaps and forwards
	// signals.
	Init bool `json:"init,omitempty"`
	// HostCgroups leaves the container in the host's cgroup namespace.
	HostCgroups bool `json:"host_cgroups,omitempty"`
	// Delegate lets the processes divide their cgroup: see CgroupRef.Delegated.
	Delegate bool `json:"delegate,omitempty"`
	// Shown has the container's names for people, if the key is not their name for it.
	Shown Shown `json:"shown,omitzero"`
	// HookID is the id that hooks read as the container's; "" is the engine's own.
	HookID string `json:"hook_id,omitempty"`
	// Users are the container's needs, in addition to its sandbox's.
	Users UserNeeds `json:"users,omitzero"`
	// LogDriver also sends the output to a log service. Without a name, or nil, it is the node's default.
	LogDriver *LogDriver `json:"log_driver,omitempty"`
	// SleepAfter puts the container to sleep when it has been idle for this time; 0 does not. Without a value the engine
	// reads SleepAfterLabel, and the sandbox's value counts.
	SleepAfter time.Duration `json:"sleep_after,omitempty"`
	// Restore makes a container that never starts its program, but continues the processes of a checkpoint: see
	// CheckpointVerbs.Prepare.
	Restore bool `json:"restore,omitempty"`
	// Run starts the program in the same call, which saves a call of StartContainer. A program
	// that cannot be started fails the create.
	Run bool `json:"run,omitempty"`
	// Rest makes a container without a process, which has exited by this request. RenewContainer makes the first process. A pair
	// gets its namespaces and its network with it.
	Rest *StopRequest `json:"-"`
}

// CgroupName returns the name of the container's cgroup.
func (c *ContainerConfig) CgroupName(id ID) string {
	if c.Delegate {
		return string(id) + DelegatedSuffix
	}
	return string(id)
}

// Shown has the texts that people see of a container.
type Shown struct {
	Name  string `json:"name,omitempty"`  // "" is the key
	Image string `json:"image,omitempty"` // the image's name, as the request has it; "" is one that the node knows
}

// Name returns the container's name for people.
func (c *Container) Name() string { return cmp.Or(c.Config.Shown.Name, string(c.Key)) }

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
	Below    string        `json:"below,omitempty"`  // a trusted directory above Dir; the path between the two is resolved when it is mounted, and no link in it is followed
	Mounts   []Mount       `json:"mounts,omitempty"` // mounts to stack in order
	ReadOnly bool          `json:"read_only,omitempty"`
}

// Mount is one mount(2). Target is relative to the mount point of the whole root.
type Mount struct {
	Type    string   `json:"type"`
	Source  string   `json:"source"`
	Target  string   `json:"target,omitempty"`
	Options []string `json:"options,omitempty"`
	// UIDs and GIDs, when set, make an overlay's lower layers an id-mapped mount: they map the
	// owners of the files as a user namespace with these mappings shows them.
	UIDs []IDRange `json:"uids,omitempty"`
	GIDs []IDRange `json:"gids,omitempty"`
}

// VolumeMount mounts a named volume of the container's owner. A volume that does not exist is
// created and, unless NoCopy is set, filled with the image's files at Target.
type VolumeMount struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	NoCopy   bool   `json:"no_copy,omitempty"`
	// Private gives the files of the volume the SELinux level of the container. Otherwise all labelled containers may
	// use them.
	Private bool `json:"private,omitempty"`
	// SubPath is the file or directory of the volume that is mounted, relative; "" is all. It is
	// resolved through no link when it is mounted, and must exist. Nothing is copied then.
	SubPath string `json:"sub_path,omitempty"`
	// Labels are those of the volume when this use is its first and makes it, and Options those
	// of VolumeConfig. A volume that exists with other options is refused.
	Labels  map[string]string `json:"labels,omitempty"`
	Options map[string]string `json:"-"` // with passwords: never stored with the container
}

// ImageMount is an image, or the file or directory at SubPath in it, to be mounted read-only.
type ImageMount struct {
	Image   digest.Digest `json:"image"` // an image's ID
	SubPath string        `json:"sub_path,omitempty"`
}

// SpecFunc builds the OCI spec when the root exists, so that it can resolve user names and the
// image's config inside it. data replaces ContainerConfig.Data, unless it is nil. The engine then
// overwrites its own fields of the spec: ociVersion, root.path, the sandbox's namespaces,
// cgroupsPath, the tiny init and volumes. Policies change it last.
type SpecFunc func(ctx context.Context, r Rootfs) (s *specs.Spec, data []byte, err error)

// Rootfs is a SpecFunc's view of the container's root filesystem.
type Rootfs struct {
	FS    *os.Root             // the root; paths cannot leave it, not even through symlinks
	Image *ocispec.ImageConfig // nil unless Root.Image
	// Sandbox is the sandbox as it is now: namespaces, Dir, network.
	Sandbox Sandbox
	// ReadOnly says that the root is an image layer that the container must not write to.
	ReadOnly bool
	// ID is the container's ID.
	ID ID
	// Images are the host paths of ContainerConfig.Images, in the same order, mounted read-only.
	Images []string
}

// Stop says how a container is stopped. The zero value sends the image's stop signal, or SIGTERM,
// and waits for no grace period.
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
	// Exits are the ends of removed execs that were started with KeepExit, the newest last. The
	// engine keeps at most engine.KeptExits of them.
	Exits   []KeptExit `json:"exits,omitempty"`
	Bundle  string     `json:"bundle,omitempty"`
	Runtime string     `json:"runtime,omitempty"` // the runtime that runs it, by its name in the config
	Cgroup  CgroupRef  `json:"cgroup"`
	// Confinement describes the confinement of a program that holds only its descriptors, or of a
	// container with levels of Landlock; nil for others.
	Confinement *Confinement `json:"confinement,omitempty"`
	// Refused is set when the runtime refused the program while it created the container. Such a
	// container has no process, and starting it fails.
	Refused *Refusal `json:"refused,omitempty"`
	// Resting says that the container has not had a process yet: see ContainerConfig.Rest.
	Resting bool `json:"resting,omitempty"`
	// Removing says that removal has begun. The container can no longer be used, and recovery
	// completes a removal that a crash has interrupted.
	Removing bool `json:"removing,omitempty"`
	// Image is the ID of the image checked out, "" for other roots.
	Image    digest.Digest `json:"image,omitempty"`
	Warnings []string      `json:"warnings,omitempty"` // features that the node could not provide, collected by create
	// Trace says where the time of its last start went, and of its image's pull.
	Trace Trace `json:"trace,omitempty"`
	// Health is the result of the program's health checks; nil before the first one.
	Health   *Health  `json:"health,omitempty"`
	Restarts Restarts `json:"restarts,omitzero"`
	// Rest describes the container's sleep, or its last one, and its checkpoint. nil if it never had one of them.
	Rest *Rest `json:"rest,omitempty"`
	// SavedSpec is the content of a durable container's config.json, for the time after a boot.
	SavedSpec Blob `json:"saved_spec,omitempty"`
}

// Blob is bytes of a record that never change, so that all copies of the record share them. In JSON
// they are encoded as those of a []byte.
type Blob string

// MarshalText implements encoding.TextMarshaler.
func (b Blob) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(b)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Blob) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return err
	}
	*b = Blob(raw)
	return nil
}

// HealthNow returns the result of the health checks of the program's present run; nil before the
// first one.
func (c *Container) HealthNow() *Health {
	if c.Health == nil || !c.Health.Since.Equal(c.Main.Started) {
		return nil
	}
	return c.Health
}

// Health is the result of the health checks of one run of a container's program.
type Health struct {
	Since    time.Time `json:"since"`              // when the program was started
	Status   string    `json:"status"`             // starting, healthy, unhealthy
	Failures int       `json:"failures,omitempty"` // in a row, those that count
	Probes   []Probe   `json:"probes,omitempty"`   // the last ones, the newest last
}

// Probe is one health check that was made.
type Probe struct {
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
	Code   int       `json:"code"` // the exit code; -1 when there is none
	Output string    `json:"output,omitempty"`
}

// Refusal says why a program cannot be executed.
type Refusal struct {
	Errno int    `json:"errno"`
	Text  string `json:"text"` // the runtime's error text
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
