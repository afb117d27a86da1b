// Package weaken switches single defences off, in builds with the tag
// "weakened" alone, so that the attack suite can show that its attacks work
// where a defence is missing. In every other build Off is the constant false
// and the code behind it is not in the program.
//
// A weakened build takes the defences to switch off from the environment
// variable Env, a list of names separated by commas.
package weaken

// Env is the environment variable that names the defences to switch off.
const Env = "LONGSHORE_WEAKEN"

// Defence names one defence.
type Defence string

// SysctlNames is that a kernel parameter's name that leads out of its namespace's own
// parameters is refused.
const SysctlNames Defence = "sysctl-names"

// MesosUsers is that Mesos' ACLs look at the uid that a process will really have, and not
// at what the call names.
const MesosUsers Defence = "mesos-users"

// MesosUnpacker is that the process that stores what Mesos' commands fetch is confined to
// their sandbox.
const MesosUnpacker Defence = "mesos-unpacker"

// NomadCDI is that a job gets devices by their CDI names only where the operator of the
// node permits devices.
const NomadCDI Defence = "nomad-cdi"

// PidNamespaceLast is that a process that joins a pid namespace enters it last, when it
// is wholly inside and has dropped all rights.
const PidNamespaceLast Defence = "pid-namespace-last"

const (
	// SharedEtc is that hosts, resolv.conf and hostname are files of the container's
	// own layer, or lie on a small file system of their sandbox.
	SharedEtc Defence = "shared-etc"
	// BareLayer is that an image's only layer is shown read-only by an overlay.
	BareLayer Defence = "bare-layer"
	// HostNull is that what hides a file is a null device that the runtime has made.
	HostNull Defence = "host-null"
)
