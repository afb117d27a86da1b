package core

import "github.com/opencontainers/runtime-spec/specs-go"

// UserIDs is the number of user ids, and of group ids, of a range that the node gives to one sandbox.
const UserIDs = uint32(65536)

// Users is a sandbox's request about user namespaces. The zero value leaves the choice to the node.
type Users struct {
	UserNeeds
	// Own asks for a user namespace with a range of the node's ids that no other sandbox has.
	Own bool `json:"own,omitempty"`
	// First and Ranges are the pool of such ranges; zero is the node's own pool.
	First  uint32 `json:"first,omitempty"`
	Ranges uint32 `json:"ranges,omitempty"`
	// Chosen says that the node gave the sandbox a user namespace that it did not ask for.
	Chosen bool `json:"chosen,omitempty"`
}

// UserNeeds are the parts of a request that may need the node's ids. They matter only if the node chooses.
type UserNeeds struct {
	// Host says why the containers have the node's ids, as in "it is privileged". The node adds its own reason. "" after the create
	// means that they have not, or that the node chooses nothing.
	Host string `json:"host,omitempty"`
	// Caps are the capabilities of the programs, as CAP_SYS_TIME. Some are without effect in another user namespace than the node's.
	Caps []string `json:"-"`
	// Devices are those of the node. In a user namespace they keep their owners, so root may not open them.
	Devices []specs.LinuxDevice `json:"-"`
	// Paths are those of the node that the containers mount, with all mounts below. Their owners must be mapped.
	Paths []string `json:"-"`
}

// UserTable gives sandboxes user namespaces.
type UserTable interface {
	// Resolve decides whether a new sandbox gets a user namespace with a range of its own, and completes cfg
	// accordingly. InvalidArgument if it must have one and the runtime has none.
	Resolve(cfg *SandboxConfig, runtime string, f RuntimeFeatures) error
	// Take chooses the range of such a sandbox, inside the transaction that records it. Unavailable if all ranges are
	// taken. FailedPrecondition if the caller's own mapping has ids of a range that was taken.
	Take(tx Tx, cfg *SandboxConfig) error
	// Exempt returns why a container must have the node's ids although the node chose a user namespace for its
	// sandbox; "" if it need not.
	Exempt(sb *SandboxConfig, c *ContainerConfig, runtime string, f RuntimeFeatures) string
	// Map makes the mounts of a container's spec show their files' owners as without a user namespace, but for those
	// that already map them and those that skip names. With recursive it includes the mounts below. FailedPrecondition
	// for a file system that cannot, except the kernel's own.
	Map(spec *specs.Spec, recursive bool, skip func(source string) bool) error
}

// Of returns the sandbox as a container of it has it: with the node's ids, if the container needs them.
func (s Sandbox) Of(c *ContainerConfig) Sandbox {
	if c.Users.Host != "" && s.Config.Users.Chosen {
		s.Config.UIDs, s.Config.GIDs, s.Config.Namespaces.User = nil, nil, Namespace{Mode: Host}
	}
	return s
}

// NodeIDs returns why a container of the sandbox has the node's ids although the node gives user namespaces by default; "" if it
// has its own, or asks for nothing else.
func (s Sandbox) NodeIDs(c *ContainerConfig) string {
	if c.Users.Host != "" {
		return c.Users.Host
	}
	return s.Config.Users.Host
}

// UserRange returns the mapping of a range of the node's ids.
func UserRange(first uint32) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{HostID: first, Size: UserIDs}}
}
