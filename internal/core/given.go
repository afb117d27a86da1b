package core

import (
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// GrantHandler is the name of the runtime whose programs hold only their descriptors, and
// GrantAnnotation the annotation of a spec with the document of such a program's grants.
const (
	GrantHandler    = "grant"
	GrantAnnotation = "longshore.grants"
)

// LandlockAnnotation is the annotation of a spec with the container's levels of Landlock: see ocispec.ParseLevels.
const LandlockAnnotation = "longshore.landlock"

// WasmHandlers are the names of handlers for pods with both WebAssembly and ordinary programs: those run by
// GrantHandler's runtime, these by the default one.
func WasmHandlers() []string { return []string{"wasm", "wasi"} }

// Identity identifies a container's program, as its face knows it. Its fields do not come from
// labels, annotations or others that a user may write freely.
type Identity struct {
	Owner Owner `json:"-"` // set by the engine
	// Namespace is Kubernetes' or Nomad's, "" where there is none.
	Namespace        string `json:"namespace,omitempty"`
	Pod              string `json:"pod,omitempty"` // a pod, an allocation, a task of Swarm
	PodAttempt       uint32 `json:"pod_attempt,omitempty"`
	Container        string `json:"container,omitempty"`
	ContainerAttempt uint32 `json:"container_attempt,omitempty"`
	Image            string `json:"image,omitempty"` // as the request names it
}

// GrantAsk has the facts that, with document and identity, decide about the descriptors of a
// container's program.
type GrantAsk struct {
	// Wish is the document that the image carries, "" if it has none. The program gets only descriptors that the image
	// wishes for.
	Wish string `json:"wish,omitempty"`
	// Secrets are the container paths of the orchestrator's mounts with secrets.
	Secrets []string `json:"secrets,omitempty"`
}

// Wish returns the document that an image carries: an annotation of its manifest, or else a label of its config.
func (i *Image) Wish() string {
	if w := i.Annotations[GrantAnnotation]; w != "" {
		return w
	}
	return i.Config.Config.Labels[GrantAnnotation]
}

// MaxGiven bounds the descriptors of a container's program, its own file included.
const MaxGiven = 64

// Given is a descriptor that a program gets when it starts.
type Given struct {
	// File is the descriptor; nil gives the program another descriptor of its standard output, with
	// lines in the container's log, or with Input of its standard input.
	File  *os.File
	Input bool
	// Access is the program's access to the files below File, if that is a directory, or to File if
	// it is a regular one. Landlock enforces it.
	Access Access
}

// Access is a set of rights to files.
type Access uint8

// The kinds of access. AccessWrite includes to create, rename and remove.
const (
	AccessRead Access = 1 << iota
	AccessWrite
	AccessExecute
)

// Confine says that a program holds only its descriptors.
type Confine struct {
	// Program is executed by this descriptor, which the program does not keep.
	Program *os.File
	// Spec replaces the container's own spec at the launch: without mounts, with a root that is
	// empty, with an allow-list of system calls.
	Spec *specs.Spec
}

// Confinement is the part of a Confine, or of a container's levels of Landlock, that the kernel enforces, read back from
// the process.
type Confinement struct {
	// Landlock is the version of Landlock's interface that was used; 0 is none.
	Landlock int `json:"landlock"`
	// Levels are those of an ordinary container, by name.
	Levels []string `json:"levels,omitempty"`
	// Seccomp, NoNewPrivileges and NoCapabilities say that the process has a filter of system calls,
	// gets no privileges by executing, and has no capability.
	Seccomp         bool `json:"seccomp"`
	NoNewPrivileges bool `json:"no_new_privileges"`
	NoCapabilities  bool `json:"no_capabilities"`
	// Left names the rights that this version of Landlock does not cover, and the mechanism that
	// covers them instead.
	Left []string `json:"left,omitempty"`
	// Accepted are the descriptors that the program got, and Denied the others of its document.
	Accepted []GrantAccepted `json:"accepted,omitempty"`
	Denied   []GrantDenied   `json:"denied,omitempty"`
	// Environment are the names of the variables in its argument.
	Environment []string `json:"environment,omitempty"`
	// Shutdown says that the end of its standard input is how the program learns that it is to stop.
	Shutdown bool `json:"shutdown,omitempty"`
}

// GrantAccepted is a descriptor that a program got, by its place in the document and as a document would ask for it.
type GrantAccepted struct {
	Descriptor int    `json:"descriptor"`
	At         string `json:"at"`
	Grant      string `json:"grant"`
}

// GrantDenied is a grant that an image's wish or the operator's policy reduced. Position is its line and column, Given
// the part that is left.
type GrantDenied struct {
	At       string `json:"at"`
	Position string `json:"position"`
	Asked    string `json:"asked"`
	Given    string `json:"given,omitempty"`
}
