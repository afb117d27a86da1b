package core

import "github.com/opencontainers/runtime-spec/specs-go"

// SELinux asks for SELinux labels. An empty part is the node's choice: the type of containers, and a level that no other
// sandbox has.
type SELinux struct {
	User  string `json:"user,omitempty"`
	Role  string `json:"role,omitempty"`
	Type  string `json:"type,omitempty"`
	Level string `json:"level,omitempty"`
	// FileType is the type of the files.
	FileType string `json:"file_type,omitempty"`
	// Always asks for labels although the node does not label all containers.
	Always bool `json:"always,omitempty"`
}

// Relabel asks for SELinux labels of the files of a mount: those of the container's own level, or those that all
// containers may use.
type Relabel struct {
	Path    string
	Private bool
}

// LabelTable gives sandboxes and containers SELinux labels.
type LabelTable interface {
	// Take sets the FileLabel of a new sandbox that gets labels, inside the transaction that records it. InvalidArgument
	// for labels that the runtime cannot give. Unavailable if all levels are taken.
	Take(tx Tx, cfg *SandboxConfig, f RuntimeFeatures) error
	// Label puts the labels of a Labelled container into its spec, and labels the files of mounts. InvalidArgument if
	// the node needs the labels of a mount as they are.
	Label(sb *SandboxConfig, c *ContainerConfig, s *specs.Spec, mounts []Relabel) error
}
