package core

// Verb is an operation on an object, for the state tables below and for policies.
type Verb string

// The verbs of the state tables.
const (
	VerbCommit Verb = "commit" // the create has completed
	VerbStart  Verb = "start"
	VerbRenew  Verb = "renew" // prepares an ended container for another start
	VerbPause  Verb = "pause"
	VerbResume Verb = "resume"
	VerbSleep  Verb = "sleep"
	VerbWake   Verb = "wake"
	VerbExit   Verb = "exit" // its process has ended
	VerbStop   Verb = "stop"
	VerbRemove Verb = "remove"
)

// The verbs that policies see and the state tables do not have.
const (
	VerbCreate Verb = "create"
	VerbExec   Verb = "exec"
	VerbUpdate Verb = "update"
	// VerbCheckpoint stores a container's processes. VerbRestore makes them again, in place of VerbStart.
	VerbCheckpoint Verb = "checkpoint"
	VerbRestore    Verb = "restore"
	// VerbKill sends a signal to a process, VerbAttach opens a main process's streams, VerbForward connects to a port in a sandbox.
	VerbKill    Verb = "kill"
	VerbAttach  Verb = "attach"
	VerbForward Verb = "forward"
)

// Gone is the state after a removal: there is no record.
const Gone = "gone"

// NextSandbox returns the state that follows, and whether verb is allowed in state. Stop and remove
// are allowed in every state: both succeed on an object that is already stopped or gone.
func NextSandbox(state SandboxState, verb Verb) (SandboxState, bool) {
	switch verb {
	case VerbCommit:
		return SandboxReady, state == SandboxCreating
	case VerbRenew:
		return SandboxReady, state == SandboxStopped
	case VerbStop, VerbExit:
		return SandboxStopped, true
	case VerbRemove:
		return Gone, true
	default:
		return state, false
	}
}

// NextContainer returns the state that follows, and whether verb is allowed in state. A stop is
// no transition of its own: it makes the process exit. A created container that never ran becomes
// exited when it is stopped.
func NextContainer(state ContainerState, verb Verb) (ContainerState, bool) {
	switch verb {
	case VerbCommit:
		return ContainerCreated, state == ContainerCreating
	case VerbRenew:
		return ContainerCreated, state == ContainerExited
	case VerbStart:
		return ContainerRunning, state == ContainerCreated
	case VerbPause:
		return ContainerPaused, state == ContainerRunning
	case VerbResume:
		return ContainerRunning, state == ContainerPaused
	case VerbSleep:
		return ContainerAsleep, state == ContainerRunning
	case VerbWake:
		return ContainerRunning, state == ContainerAsleep
	case VerbExit:
		return ContainerExited, state != ContainerCreating && state != ContainerExited && state != Gone
	case VerbStop:
		return ContainerExited, true
	case VerbRemove:
		return Gone, true
	default:
		return state, false
	}
}
