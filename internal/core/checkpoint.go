package core

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Checkpointer stores the processes of containers in files, and makes the processes again. It has one
// checkpoint of a container, in a directory of its own.
type Checkpointer interface {
	// Able returns an error with the reason why this node makes no checkpoints: NotFound when a program is
	// missing.
	Able(ctx context.Context) error
	// Dump stores a container, and replaces an earlier checkpoint. The cgroup of the container is frozen. With
	// End of the request Dump may kill the processes at its end, otherwise they stay frozen. After an error they
	// are as before, and there is no checkpoint.
	Dump(ctx context.Context, req DumpRequest) (Dumped, error)
	// Settle returns when nothing works any more for a call of Dump or Restore of an earlier agent. It kills the
	// processes of a Restore.
	Settle(ctx context.Context, c *Container) error
	// Restore makes the processes of the checkpoint of a container, and returns the pid of the first one. It
	// calls Vacate of the request when it needs the container's waiting process no longer. After an error
	// none of the processes is left.
	Restore(ctx context.Context, req RestoreRequest) (pid int, err error)
	// Fits returns the reason why a container cannot get the processes of its checkpoint.
	Fits(ctx context.Context, req RestoreRequest) error
	// Export writes a checkpoint as a tar. NotFound.
	Export(ctx context.Context, id ID, w io.Writer) error
	// Import reads such a tar. InvalidArgument for one that is none, or is of another program.
	Import(ctx context.Context, r io.Reader) (Imported, error)
	// Describe reads the description of a container's checkpoint. NotFound.
	Describe(ctx context.Context, id ID) (CheckpointMeta, error)
	// Remove removes a container's checkpoint. It is idempotent.
	Remove(ctx context.Context, id ID) error
	// Stored returns the containers that have a checkpoint or a part of one.
	Stored(ctx context.Context) ([]ID, error)
}

// CheckpointVerbs are the engine's verbs on the checkpoints of the containers of a scope.
type CheckpointVerbs interface {
	CheckpointRecoverer
	// Able returns the reason why this node makes no checkpoints, or nil.
	Able(ctx context.Context) error
	// Checkpoint stores the processes of a running or paused container. They continue afterwards, unless the
	// options end them. After an error they run as before.
	Checkpoint(ctx context.Context, id ID, o CheckpointOptions) error
	// CheckpointTogether is Checkpoint for containers of one sandbox, all stored as they are at one moment. Either
	// all have a checkpoint, or none has.
	CheckpointTogether(ctx context.Context, ids []ID, o CheckpointOptions) error
	// Prepare gives a checkpoint to a created container with Config.Restore. Restore then starts the container, with these
	// options. FailedPrecondition if the checkpoint does not fit.
	Prepare(ctx context.Context, id ID, from Imported, o RestoreOptions) error
	// Restore continues the processes of a container's checkpoint, in place of a start of its program. The
	// container is created. After an error it has ended, and its autopsy has the reason.
	Restore(ctx context.Context, id ID, o RestoreOptions) error
	// Export writes the checkpoint of a container as a tar. NotFound.
	Export(ctx context.Context, id ID, w io.Writer) error
	// Import reads such a tar.
	Import(ctx context.Context, r io.Reader) (Imported, error)
	// Forget removes the checkpoint of a container.
	Forget(ctx context.Context, id ID) error
}

// CheckpointRecoverer are the parts of CheckpointVerbs that the engine calls.
type CheckpointRecoverer interface {
	// Recover completes or undoes the interrupted verbs of an earlier agent, and removes checkpoints without a
	// container. It must run before the processes are compared with the records.
	Recover(ctx context.Context) error
	// Ended removes the checkpoint of a container that is removed.
	Ended(ctx context.Context, id ID) error
}

// RestoreOptions are a caller's options of a restore.
type RestoreOptions struct {
	TCP TCPMode // "" is that of the checkpoint
	// Root applies the checkpoint's changes to the root file system: the container is a new one.
	Root bool
}

// CheckpointHost are the parts of the engine that CheckpointVerbs need.
type CheckpointHost struct {
	// Perform asks the policies about an operation and does it.
	Perform func(ctx context.Context, op *Operation, do func() error) error
	// Kill kills all processes of a container, and Record stores the reason.
	Kill   func(ctx context.Context, c *Container) error
	Record func(ref Ref, r StopRequest) error
	// Busy reports whether an exec without a record runs in a container.
	Busy func(id ID) bool
	// Wake wakes a container that sleeps.
	Wake func(ctx context.Context, id ID) error
	// Launching locks a process: the end of a process is recorded only without the lock. DropKilled has the keeper
	// forget a killed process.
	Launching  func(ctx context.Context, ref Ref) (unlock func(), err error)
	DropKilled func(ctx context.Context, ref Ref) error
	// Failed ends a container after a failed start, and Await waits for the end of a process.
	Failed func(ctx context.Context, c *Container, cause error) error
	Await  func(ctx context.Context, ref Ref) (Autopsy, error)
}

// Imported is a checkpoint that was read from a tar, and is not a container's yet.
type Imported interface {
	Meta() CheckpointMeta
	// Give makes it the checkpoint of a container, in place of an earlier one.
	Give(ctx context.Context, id ID) error
	// Close removes it, unless a container has got it.
	Close() error
}

// DumpRequest asks for a checkpoint of a container.
type DumpRequest struct {
	Container Container
	Sandbox   Sandbox
	CheckpointOptions
}

// CheckpointOptions are a caller's options of a checkpoint.
type CheckpointOptions struct {
	// End ends the container. Otherwise it continues.
	End bool
	TCP TCPMode
	// FileLocks stores file locks. Nobody outside of the container may have a lock of these files.
	FileLocks bool
	// Timeout bounds the time of the program; 0 is a default.
	Timeout time.Duration
}

// TCPMode is the treatment of established TCP connections.
type TCPMode string

// The modes. Without one a container with an established connection is refused.
const (
	TCPRefuse TCPMode = ""
	TCPKeep   TCPMode = "keep"  // they continue after the restore, if the container has the same addresses
	TCPClose  TCPMode = "close" // they are closed in the restored container
)

// ParseTCPMode parses a mode.
func ParseTCPMode(s string) (TCPMode, error) {
	switch m := TCPMode(s); m {
	case TCPRefuse, TCPKeep, TCPClose:
		return m, nil
	}
	return "", fmt.Errorf("TCP mode %q is neither keep nor close", s)
}

// Dumped describes a checkpoint.
type Dumped struct {
	Bytes uint64 `json:"bytes"` // on disk
	// Frozen is the time that the program took.
	Frozen time.Duration `json:"frozen"`
}

// RestoreRequest asks for the processes of a container's checkpoint. The container is created, and its
// process waits before its program: its mounts become those of the restored processes.
type RestoreRequest struct {
	Container Container
	Sandbox   Sandbox
	Launch    Launch // without Attach
	// Vacate ends the waiting process and has the keeper forget it.
	Vacate func(ctx context.Context) error
	TCP    TCPMode // "" is that of the checkpoint
	// Root applies the changes of the root file system that the checkpoint has.
	Root bool
}

// CheckpointAnnotations returns the annotations of an image's manifest that make its layer a checkpoint, with CRI-O and with containerd.
func CheckpointAnnotations() []string {
	return []string{"io.kubernetes.cri-o.annotations.checkpoint.name", "org.criu.checkpoint.container.name"}
}

// CheckpointMeta describes a checkpoint.
type CheckpointMeta struct {
	Container string    `json:"container"` // ID
	Owner     Owner     `json:"owner"`
	Name      string    `json:"name"`
	Image     string    `json:"image,omitempty"` // ID
	ImageName string    `json:"image_name,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	At        time.Time `json:"at"`
	TCP       TCPMode   `json:"tcp,omitempty"`
	// Data is the owner's own record of the container.
	Data []byte `json:"data,omitempty"`
}

// Checkpoint is the container's last checkpoint or restore.
type Checkpoint struct {
	Phase CheckpointPhase `json:"phase,omitempty"`
	At    time.Time       `json:"at,omitzero"`
	Dumped
	TCP TCPMode `json:"tcp,omitempty"`
	// Paused says that the container was paused before, and End that it ends with the checkpoint.
	Paused bool `json:"paused,omitempty"`
	End    bool `json:"end,omitempty"`
	// Addresses are those of the stored TCP connections.
	Addresses []string `json:"addresses,omitempty"`
	// Vacated is the pid of the process that waited until a restored one took its place: its end is not the container's.
	Vacated int `json:"vacated,omitempty"`
	// Kept says that the node has the checkpoint.
	Kept bool `json:"kept,omitempty"`
	// Restored is the time when the processes were restored, from a checkpoint of the time At.
	Restored time.Time `json:"restored,omitzero"`
}

// CheckpointPhase is a step of a checkpoint or a restore.
type CheckpointPhase string

// The phases. In CheckpointDumping the container is paused, and in CheckpointRestoring created.
const (
	CheckpointDumping   CheckpointPhase = "dumping"
	CheckpointRestoring CheckpointPhase = "restoring"
	CheckpointOver      CheckpointPhase = ""
)

// LastCheckpoint returns the container's last checkpoint or restore; nil if there was none.
func (c *Container) LastCheckpoint() *Checkpoint {
	if c.Rest == nil {
		return nil
	}
	return c.Rest.Checkpoint
}

// SetCheckpoint sets it.
func (c *Container) SetCheckpoint(p *Checkpoint) {
	rest := Rest{}
	if c.Rest != nil {
		rest = *c.Rest
	}
	rest.Checkpoint = p
	c.Rest = &rest
}
