package core

import "time"

// ID is the engine's own name for an object: 64 lower-case hex digits, made by
// the engine, never reused.
type ID string

// Short returns the first twelve digits, for people to read. Logs and errors that a program may
// read carry the whole ID.
func (id ID) Short() string {
	if len(id) > 12 {
		return string(id[:12])
	}
	return string(id)
}

// Owner says which face an object belongs to. The engine sets it from the
// Client in use; a face cannot choose it.
type Owner string

// The owners. Every face has one; OwnerCLI is the control API's own objects.
const (
	OwnerCRI   Owner = "cri"
	OwnerSwarm Owner = "swarm"
	OwnerNomad Owner = "nomad"
	OwnerMesos Owner = "mesos"
	OwnerKata  Owner = "kata"
	OwnerCLI   Owner = "cli"
	// OwnerDocker owns the objects of Docker's API.
	OwnerDocker Owner = "docker"

	// OwnerCRIAlpha owns the objects of the CRI of 2017. They need an owner of their own, because
	// kubelet, with v1, removes pods of its owner that it does not know.
	OwnerCRIAlpha Owner = "cri1alpha"
	// OwnerCRIProfiles owns artifacts with security profiles while the CRI's face reads them. No client sees them.
	OwnerCRIProfiles Owner = "cri-profiles"
)

// Key is the face's own name for an object. (Owner, kind of object, Key) is unique: a second
// create with the same Key returns AlreadyExists together with the first object. A Key may
// contain any bytes but NUL, at most MaxKey of them.
type Key string

// MaxKey is the length of the longest Key that the engine accepts, in bytes.
const MaxKey = 4096

// Meta has the fields of every stored object.
type Meta struct {
	ID    ID    `json:"id"`
	Owner Owner `json:"owner"`
	Key   Key   `json:"key"`
	// Labels are for selection; the engine itself never reads them.
	Labels map[string]string `json:"labels,omitempty"`
	// Data is the face's own record. It is stored atomically with the object, and the engine
	// never reads it.
	Data    []byte    `json:"data,omitempty"`
	Created time.Time `json:"created"`
	// Rev is the Seq of the last event that touched the object.
	Rev uint64 `json:"rev"`
}

// Base returns m itself; it lets a Table reach the Meta of any stored noun.
func (m *Meta) Base() *Meta { return m }
