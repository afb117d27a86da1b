package treecopy

import "github.com/opencontainers/runtime-spec/specs-go"

// IDs maps the users and groups of a container with a user namespace to those of the node. The zero
// value is no user namespace: both are the same.
type IDs struct{ UIDs, GIDs []specs.LinuxIDMapping }

// Mapped reports whether there is a user namespace.
func (m IDs) Mapped() bool { return len(m.UIDs)+len(m.GIDs) > 0 }

// nobody is the id that a program sees for an owner outside of its user namespace.
const nobody = 65534

// Host returns the node's ids of a user and a group of the container.
func (m IDs) Host(uid, gid int) (hostUID, hostGID int, ok bool) {
	if !m.Mapped() {
		return uid, gid, true
	}
	hostUID, ok = hostID(m.UIDs, uid)
	hostGID, group := hostID(m.GIDs, gid)
	return hostUID, hostGID, ok && group
}

// inside returns the container's ids of a user and a group of the node.
func (m IDs) inside(uid, gid int) (int, int) {
	if !m.Mapped() {
		return uid, gid
	}
	return insideID(m.UIDs, uid), insideID(m.GIDs, gid)
}

func hostID(maps []specs.LinuxIDMapping, id int) (int, bool) {
	for _, m := range maps {
		if n := id - int(m.ContainerID); n >= 0 && n < int(m.Size) {
			return int(m.HostID) + n, true
		}
	}
	return 0, false
}

func insideID(maps []specs.LinuxIDMapping, id int) int {
	for _, m := range maps {
		if n := id - int(m.HostID); n >= 0 && n < int(m.Size) {
			return int(m.ContainerID) + n
		}
	}
	return nobody
}
