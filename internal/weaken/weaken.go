// Package weaken switches single defences off, only in builds with the tag "weakened",
// so that the attack suite can show that its attacks succeed where a defence is missing.
// In every other build Off is the constant false, and the compiler removes the code
// behind it.
//
// A weakened build takes the defences to switch off from the environment
// variable Env, a list of names separated by commas.
package weaken

// Env is the environment variable that names the defences to switch off.
const Env = "LONGSHORE_WEAKEN"

// Defence names one defence.
type Defence string

// SysctlNames refuses names of kernel parameters that lead out of their namespace's own
// parameters.
const SysctlNames Defence = "sysctl-names"

// MesosUsers makes Mesos' ACLs check the uid that a process will really have, instead of
// the user named in the call.
const MesosUsers Defence = "mesos-users"

// MesosUnpacker confines the process that stores fetched files of Mesos' commands to their sandbox
// directory.
const MesosUnpacker Defence = "mesos-unpacker"

// NomadCDI gives a job devices by their CDI names only if the node's operator permits
// devices.
const NomadCDI Defence = "nomad-cdi"

// PidNamespaceLast makes a process that joins a pid namespace enter it last, when it is
// confined in every other way and has dropped all rights.
const PidNamespaceLast Defence = "pid-namespace-last"

const (
	// SharedEtc makes hosts, resolv.conf and hostname files of the container's own
	// layer, or puts them on a small file system of their sandbox.
	SharedEtc Defence = "shared-etc"
	// BareLayer mounts an image's only layer read-only through an overlay.
	BareLayer Defence = "bare-layer"
	// HostNull hides files behind a null device that the runtime has made.
	HostNull Defence = "host-null"
)

// EnumValues refuses requests with an unknown value of an enum.
const EnumValues Defence = "enum-values"

// InotifyPolling lets readers of logs poll when uid 0 has used up its inotify instances.
const InotifyPolling Defence = "inotify-polling"

// KeyringQuota starts a process without a session keyring of its own when uid 0 has used up its
// quota of keys.
const KeyringQuota Defence = "keyring-quota"

// SessionKeyring keeps session keyrings of others from containers' processes: that of the agent's
// caller, and those that have a name.
const SessionKeyring Defence = "session-keyring"
