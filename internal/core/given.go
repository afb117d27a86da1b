package core

import (
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// GrantHandler is the name of the runtime whose programs hold only their descriptors, and
// GrantAnnotation the annotation of a spec that has the document of what such a program is granted.
const (
	GrantHandler    = "grant"
	GrantAnnotation = "longshore.grants"
)

// WasmHandlers are the names of handlers whose pods have WebAssembly programs beside ordinary ones: those run by GrantHandler's
// runtime, these by the default one.
func WasmHandlers() []string { return []string{"wasm", "wasi"} }

// Identity says whose program a container runs, as its face knows it. Nothing of it is read from
// what a user may write freely, such as labels and annotations.
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

// GrantAsk is what decides, beside its document and identity, what a container's program is given.
type GrantAsk struct {
	// Wish is the document that the image carries, "" if it has none. The program gets nothing for which the image does not wish.
	Wish string `json:"wish,omitempty"`
	// Secrets are the container paths of the mounts by which the orchestrator delivered secrets.
	Secrets []string `json:"secrets,omitempty"`
}

// Wish returns the document that an image carries: an annotation of its manifest, or else a label of its config.
func (i *Image) Wish() string {
	if w := i.Annotations[GrantAnnotation]; w != "" {
		return w
	}
	return i.Config.Config.Labels[GrantAnnotation]
}

// MaxGiven is how many descriptors a container's program can be given, its own file included.
const MaxGiven = 64

// Given is a descriptor that a program gets when it starts.
type Given struct {
	// File is the descriptor; nil gives the program another one of its standard output, whose lines
	// become those of the container's log, or with Input of its standard input.
	File  *os.File
	Input bool
	// Access is what the program may do below File, if that is a directory, or with File if it is a
	// regular one. Landlock enforces it.
	Access Access
}

// Access is a set of what may be done with files.
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
	// Spec is what the runtime launches in place of the container's own spec: without mounts, with a
	// root that is empty, with an allow-list of system calls.
	Spec *specs.Spec
}

// Confinement is what the kernel took of a Confine, read back from the process.
type Confinement struct {
	// Landlock is the version of Landlock's interface that was used; 0 is none.
	Landlock int `json:"landlock"`
	// Seccomp, NoNewPrivileges and NoCapabilities say that the process has a filter of system calls,
	// gets no privileges by executing, and has no capability.
	Seccomp         bool `json:"seccomp"`
	NoNewPrivileges bool `json:"no_new_privileges"`
	NoCapabilities  bool `json:"no_capabilities"`
	// Left names what this version of Landlock does not cover, and what covers it instead.
	Left []string `json:"left,omitempty"`
	// Accepted is what the program was given, and Denied what its document asks for and it did not get.
	Accepted []GrantAccepted `json:"accepted,omitempty"`
	Denied   []GrantDenied   `json:"denied,omitempty"`
	// Environment are the names of the variables whose values its argument has.
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

// GrantDenied is what an image's wish or the operator's policy took away. Position is its line and column, Given what is left of it.
type GrantDenied struct {
	At       string `json:"at"`
	Position string `json:"position"`
	Asked    string `json:"asked"`
	Given    string `json:"given,omitempty"`
}
