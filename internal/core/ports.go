package core

import (
	"context"
	"errors"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Errors of every port carry a class of github.com/containerd/errdefs
// (NotFound, AlreadyExists, InvalidArgument, FailedPrecondition, Unavailable,
// ResourceExhausted, DataLoss, …) or the context's own error. Text is lower
// case, operation first.

// Runtime starts containers. It executes nothing itself: it compiles what is to
// be done and has the Launcher, whose children containers are, carry it out.
type Runtime interface {
	// Name is the handler's name in the config: native, crun, runc, …
	Name() string
	Features(ctx context.Context) (RuntimeFeatures, error)
	// Create makes a container's main process, parked before its program unless
	// it is to run, and returns its pid. The bundle directory holds rootfs/, mounted;
	// Create writes config.json. A *StartError says that the program was refused, and
	// that all else of the container is right.
	Create(ctx context.Context, c RuntimeCreate) (pid int, err error)
	// Start lets the parked process run its program. It succeeds for one that runs
	// it already, and is an ErrEnded for one that has ended. A *StartError says that
	// the program was refused.
	Start(ctx context.Context, id ID) error
	// Exec starts a further process and returns its pid and, when asked for,
	// a stream.
	Exec(ctx context.Context, e RuntimeExec) (Launched, error)
	Pause(ctx context.Context, id ID) error
	Resume(ctx context.Context, id ID) error
	Update(ctx context.Context, id ID, res *specs.LinuxResources) error
	// Delete removes what the runtime keeps of a container, killing what is
	// left of it when force is set. It succeeds when there is nothing.
	Delete(ctx context.Context, id ID, force bool) error
	// List names the containers the runtime has something of, for check.
	List(ctx context.Context) ([]ID, error)
}

// RuntimeCreate asks for a container.
type RuntimeCreate struct {
	ID     ID
	Bundle string
	Spec   *specs.Spec
	IO     IO
	// Cgroup is where the container goes; Spec.Linux.CgroupsPath says the same.
	Cgroup CgroupRef
	// Limited says that Cgroup is there and has the limits of Spec already.
	Limited bool
	// Levels are the container's cgroup and those above it whose limits the
	// exit record is to tell of, nearest first.
	Levels []CgroupRef
	// UID and GID own the ends of the standard streams, as the host sees them.
	UID, GID uint32
	// Run lets the program run at once, as Start would. When it cannot, nothing
	// of the container is left.
	Run bool
}

// RuntimeExec asks for a further process.
type RuntimeExec struct {
	Ref      Ref
	Bundle   string
	Spec     *specs.Process
	IO       IO
	Attach   *StreamOptions
	Levels   []CgroupRef
	UID, GID uint32
}

// RuntimeFeatures is what a runtime can do.
type RuntimeFeatures struct {
	Path               string // of the program; "" for native
	Version            string
	OCIVersionMax      string
	UserNamespaces     bool
	IDMappedMounts     bool
	RecursiveReadOnly  bool
	SupplementalGroups bool
	Seccomp            bool
	Checkpoint         bool
	CgroupV2           bool
	Systemd            bool
}

// Launcher is the keeper as those see it who start processes: they become its
// children, and outlive the agent as it does. Runtimes launch; nobody else does.
type Launcher interface {
	// LaunchCommand runs a command that leaves a process behind, and adopts that
	// process under its Ref. A command that ran and failed is a *CommandError.
	LaunchCommand(ctx context.Context, l CommandLaunch) (Launched, error)
	// LaunchPlan has a child of the keeper's run a plan, the last step of which
	// executes the program.
	LaunchPlan(ctx context.Context, l PlanLaunch) (Launched, error)
	// Release lets a process that was launched parked run its program, and
	// returns once it does. It succeeds for one that runs it already, and is an
	// ErrEnded for one that has ended.
	Release(ctx context.Context, ref Ref) error
	// Advance lets a process that waits for the hooks of its creation go on, and
	// returns once it is parked before its program.
	Advance(ctx context.Context, ref Ref) error
	// Run runs a command to its end.
	Run(ctx context.Context, c Command) (CommandResult, error)
	// RunPlan is Run for a program that a plan executes.
	RunPlan(ctx context.Context, p PlannedCommand) (CommandResult, error)
}

// Supervisor is the keeper as those see it who watch processes: it is the parent
// of every container process and owns its standard streams. It outlives the agent.
type Supervisor interface {
	// Signal sends a signal to one process by its pidfd; NotFound when it has
	// ended.
	Signal(ctx context.Context, ref Ref, signal int) error
	Streams(ctx context.Context, ref Ref, opts StreamOptions) (*Streams, error)
	Resize(ctx context.Context, ref Ref, size Size) error
	CloseStdin(ctx context.Context, ref Ref) error
	// ReopenSinks opens every sink's path anew, after somebody renamed it.
	ReopenSinks(ctx context.Context, ref Ref) error
	// Processes lists everything that was launched and not forgotten.
	Processes(ctx context.Context) ([]Supervised, error)
	// Exits yields exits not yet acknowledged, first the old ones, then as
	// they happen. An exit is offered once all output of the process is in its
	// sinks. It ends with the context, or with an error when the keeper is
	// gone; call it again then.
	Exits(ctx context.Context) iter.Seq2[ProcessExit, error]
	// Ack says that an exit is on record; it will not be offered again.
	Ack(ctx context.Context, ref Ref) error
	// Forget drops a process that has ended: its streams, held output and exit
	// record. NotFound is success.
	Forget(ctx context.Context, ref Ref) error
	Status(ctx context.Context) (SupervisorStatus, error)
}

// Command is a command line to run. Nothing of the agent's environment is passed.
type Command struct {
	Args []string // Args[0] is an absolute path, unless Path is set
	Env  []string
	Dir  string
	// Path is the program's where Args[0] is another name; "" is Args[0].
	Path string
	// Stdin is what it reads, then its input ends.
	Stdin []byte
	// HideUnified runs it where /sys/fs/cgroup/unified is not mounted: crun
	// refuses a v2 tree that owns controllers beside v1.
	HideUnified bool
}

// PlannedCommand is a program to run that a plan executes.
type PlannedCommand struct {
	// Plan is the list of system calls (internal/runtime/native/plan) that a
	// child of the keeper's makes.
	Plan []byte
	// Target is the process whose namespaces the plan joins; the zero Ref is none.
	Target Ref
	// Stdin is what the program reads, then its input ends.
	Stdin []byte
}

// CommandResult is how a command ended. Stdout is at most 1 MiB, Stderr the
// last 4 KiB.
type CommandResult struct {
	Status int // as Exit.Status
	Stdout []byte
	Stderr string
}

// Launch is what the launch of a process says whatever starts it.
type Launch struct {
	Ref    Ref
	IO     IO
	Attach *StreamOptions // nil opens no stream
	// UID and GID own the ends of the standard streams, as the host sees them.
	UID, GID uint32
	// Levels are read when the process ends, before anybody removes them.
	Levels []OOMLevel
	// Peak is a file holding the cgroup's highest memory use, "" for none.
	Peak string
}

// CommandLaunch launches a process by a command that ends once it has started it:
// an OCI runtime's.
type CommandLaunch struct {
	Launch
	Command Command // without Path and Stdin
	// PidFile is where the command writes the process's pid, absolute.
	PidFile string
	// ConsoleSocket is where the command sends the pty's master when IO.TTY; the
	// keeper listens there. It must be short enough for a socket address.
	ConsoleSocket string
}

// PlanLaunch launches a process by a plan that a child of the keeper's runs, and
// becomes by its last step.
type PlanLaunch struct {
	Launch
	// Plan is the list of system calls (internal/runtime/native/plan).
	Plan []byte
	// Park stops the process before its program until Release.
	Park bool
	// Target is the process whose namespaces it joins; the zero Ref is none.
	Target Ref
}

// OOMLevel is one cgroup whose out-of-memory counter the exit record tells.
type OOMLevel struct {
	// Path of memory.oom_control (v1) or memory.events (v2): a file with a
	// line "oom_kill N". LocalPath is v2's memory.events.local or "".
	Path      string
	LocalPath string
}

// Launched is a process that was launched.
type Launched struct {
	Pid     int
	Streams *Streams // when Attach asked for one
}

// Supervised is a process that the keeper knows.
type Supervised struct {
	Ref     Ref
	Pid     int
	Running bool
	// Lost counts output bytes that no sink took, e.g. of a full disk.
	Lost uint64
}

// ProcessExit is one exit record.
type ProcessExit struct {
	Ref  Ref
	Pid  int
	Exit Exit
	// OOMKills has the growth of each Launch.Levels counter while the process
	// lived; OOMLocal the same of LocalPath (v2: limit hit at this very level).
	OOMKills []uint64
	OOMLocal []uint64
	Peak     uint64
	LostOut  uint64 // output bytes dropped
}

// SupervisorStatus is for doctor and metrics.
type SupervisorStatus struct {
	Version   string
	KeeperPid int
	NestPid   int // 0: no nest, a keeper's death would now lose exits
	Started   time.Time
	Processes int
	Pending   int // exits not acknowledged
	Lost      uint64
}

// Network gives a network namespace its interfaces and takes them away again.
type Network interface {
	Setup(ctx context.Context, req NetworkRequest) (NetworkStatus, error)
	Check(ctx context.Context, req NetworkRequest) error
	// Teardown is idempotent and works without the namespace.
	Teardown(ctx context.Context, req NetworkRequest) error
	Info(ctx context.Context) (NetworkInfo, error)
	// SetRanges changes the ranges that later sandboxes get addresses from.
	SetRanges(ctx context.Context, cidrs []string) error
	// Sandboxes names those that hold anything of the network, for check.
	Sandboxes(ctx context.Context) ([]ID, error)
	// Stats counts what went through the interfaces of each sandbox, without
	// loopback. One on the host's network, or without any, is not in the
	// answer. One call for many costs little more than one for one.
	Stats(ctx context.Context, reqs []NetworkRequest) (map[ID][]NetStats, error)
}

// Pinner makes namespaces that live without a process, by bind mounts.
type Pinner interface {
	// Pin makes the asked kinds together and returns the path of each.
	Pin(ctx context.Context, req PinRequest) (map[specs.LinuxNamespaceType]string, error)
	// Unpin is idempotent.
	Unpin(ctx context.Context, sandbox ID) error
	Pinned(ctx context.Context) ([]ID, error)
}

// PinRequest asks for namespaces.
type PinRequest struct {
	Sandbox    ID
	Kinds      []specs.LinuxNamespaceType // network, ipc, uts, user
	Hostname   string
	Domainname string
	Sysctls    map[string]string // each set in the namespace it belongs to
	UIDs, GIDs []specs.LinuxIDMapping
}

// Cgroups makes, limits, watches and removes cgroups on v1, v2 and hybrid.
type Cgroups interface {
	Mode() CgroupMode
	// Place says where an object named name goes below parent (zero: below the
	// engine's own tree); it makes nothing.
	Place(parent Cgroup, above CgroupRef, name string) (CgroupRef, error)
	Create(ctx context.Context, ref CgroupRef, res *specs.LinuxResources) error
	Update(ctx context.Context, ref CgroupRef, res *specs.LinuxResources) error
	// Resources reads back what the kernel enforces.
	Resources(ctx context.Context, ref CgroupRef) (*specs.LinuxResources, error)
	// MemoryLimit reads back how many bytes ref may use; 0 is no limit. It is
	// for who wants nothing else of Resources, which reads a dozen files.
	MemoryLimit(ctx context.Context, ref CgroupRef) (uint64, error)
	Freeze(ctx context.Context, ref CgroupRef, frozen bool) error
	// Kill sends SIGKILL to everything in and below ref, forks included.
	Kill(ctx context.Context, ref CgroupRef) error
	Pids(ctx context.Context, ref CgroupRef) ([]int, error)
	// Remove is idempotent; it leaves adopted cgroups alone.
	Remove(ctx context.Context, ref CgroupRef) error
	// Stats reads the fields that want selects; Root, Net and Limits are not
	// among them.
	Stats(ctx context.Context, ref CgroupRef, want StatsFields) (Stats, error)
	// OOMLevel names the files that tell of out-of-memory kills in ref, and
	// the one that tells the peak.
	OOMLevel(ref CgroupRef) (level OOMLevel, peak string)
	// List names the cgroups (as CgroupRef.Path) below the engine's own tree,
	// sorted.
	List(ctx context.Context) ([]string, error)
}

// CgroupMode is how this node's cgroups are mounted.
type CgroupMode string

// The cgroup modes.
const (
	CgroupV1     CgroupMode = "v1"
	CgroupV2     CgroupMode = "v2"
	CgroupHybrid CgroupMode = "hybrid" // controllers on v1, a v2 tree beside them
)

// Roots mounts and unmounts root filesystems.
type Roots interface {
	Mount(ctx context.Context, target string, mounts []Mount, readOnly bool) error
	// Unmount takes everything mounted at and below target away; idempotent.
	Unmount(ctx context.Context, target string) error
	// Mounted lists mount points below dir, for check.
	Mounted(ctx context.Context, dir string) ([]string, error)
}

// Images keeps image content once, and names and pins per owner.
type Images interface {
	Pull(ctx context.Context, owner Owner, ref string, opts PullOptions) (Image, error)
	// Get finds an image by name (short names resolve), by name@digest, by ID,
	// or by a prefix of the ID that is unique.
	Get(ctx context.Context, owner Owner, ref string) (Image, error)
	List(ctx context.Context, owner Owner) ([]Image, error) // owner "" lists all
	Tag(ctx context.Context, owner Owner, source, target string) error
	// Remove drops a name, or by ID every name; content goes when nobody
	// holds it.
	Remove(ctx context.Context, owner Owner, ref string) error
	Checkout(ctx context.Context, req CheckoutRequest) (Checkout, error)
	Discard(ctx context.Context, container ID) error // idempotent
	Checkouts(ctx context.Context) ([]ID, error)
	// RootStats is the size of a container's own layer, which may be some
	// seconds old: it says when it was found.
	RootStats(ctx context.Context, container ID) (RootStats, error)
	Pin(ctx context.Context, owner Owner, ref string, pinned bool) error
	Import(ctx context.Context, owner Owner, archive io.Reader) ([]Image, error)
	Export(ctx context.Context, owner Owner, refs []string, w io.Writer) error
	// Prune removes the owner's names for which keep answers false, then
	// collects garbage.
	Prune(ctx context.Context, owner Owner, keep func(Image) bool) (freed uint64, err error)
	Usage(ctx context.Context) (ImageUsage, error)
}

// ImageUsage is the whole store's.
type ImageUsage struct {
	Path   string // the filesystem's mount point or the store's directory
	Bytes  uint64
	Inodes uint64
}

// Volumes keeps named directories that outlive containers.
type Volumes interface {
	Create(ctx context.Context, owner Owner, name string, labels map[string]string) (Volume, error)
	Get(ctx context.Context, owner Owner, name string) (Volume, error)
	List(ctx context.Context, owner Owner) ([]Volume, error)
	Remove(ctx context.Context, owner Owner, name string) error
	// Filled records that the first use has copied the image's content in.
	Filled(ctx context.Context, owner Owner, name string) error
}

// Volume is a named directory.
type Volume struct {
	Owner   Owner             `json:"owner"`
	Name    string            `json:"name"`
	Path    string            `json:"path"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
	Filled  bool              `json:"filled"`
}

// OOMLog reads the traces an out-of-memory kill leaves in the kernel log.
type OOMLog interface {
	// Victims returns the kills since the given time, oldest first, or nil
	// when the kernel log cannot be read.
	Victims(ctx context.Context, since time.Time) []OOMVictim
}

// OOMVictim is one line of the kernel log.
type OOMVictim struct {
	At     time.Time
	Pid    int
	Memcg  string // the cgroup whose limit was hit; "" for the whole machine
	Victim string // the cgroup the victim lived in
}

// Store keeps the engine's records. Events are appended in the same transaction
// as the change they tell of.
type Store interface {
	View(fn func(Tx) error) error
	Update(fn func(Tx) error) error
	// Wait blocks until an event newer than seq exists, or ctx ends.
	Wait(ctx context.Context, seq uint64) error
	// Scope is a face's own drawer. It outlives a boot when durable is set,
	// and is then synced before Put returns.
	Scope(owner Owner, durable bool) KV
	// LostObjects lists the objects that existed when the node went down, if this
	// is the first store opened since then: the event log has them, and their
	// records are gone. An event that ends an object removes it from the list.
	LostObjects() []LostObject
	Close() error
}

// LostObject is an object whose record was lost in a restart of the node.
type LostObject struct {
	Owner     Owner       `json:"owner"`
	Key       Key         `json:"key"`
	Sandbox   ID          `json:"sandbox"`
	Container ID          `json:"container,omitempty"` // "" for a sandbox
	Running   bool        `json:"running,omitempty"`   // its main process had started and not ended
	Execs     []ProcessID `json:"execs,omitempty"`     // that had started and not ended
}

// Tx is one transaction; it must not be used after its function returned.
type Tx interface {
	Sandboxes() Table[Sandbox]
	Containers() Table[Container]
	// ContainersOf yields one sandbox's containers, oldest first, without
	// looking at the others'. Each is the caller's own copy.
	ContainersOf(sandbox ID) iter.Seq[Container]
	// StoredOf is ContainersOf of the objects themselves, as Table.Stored yields
	// them.
	StoredOf(sandbox ID) iter.Seq[*Container]
	Append(Event) (seq uint64, err error)
	// Events yields events newer than since, oldest first. OutOfRange when
	// some of them were trimmed, or since lies beyond LastSeq.
	Events(since uint64) iter.Seq2[Event, error]
	// LastSeq is the Seq of the newest event, 0 before the first.
	LastSeq() uint64
}

// Table holds one kind of object. What it returns is the caller's own copy, but
// for Stored's and Peek's.
type Table[T any] interface {
	Get(id ID) (T, error)
	ByKey(owner Owner, key Key) (T, error)
	Put(T) error // AlreadyExists when another object has the same Owner and Key
	Delete(id ID) error
	All(owner Owner) iter.Seq2[T, error] // owner "" is every owner
	// Stored yields the objects themselves, which nobody may change: a Put makes
	// another one. They may be kept.
	Stored(owner Owner) iter.Seq[*T]
	// Peek is Get of the object itself, as Stored yields it.
	Peek(id ID) (*T, error)
}

// KV is a small drawer of bytes.
type KV interface {
	Get(key string) ([]byte, error)
	Put(key string, value []byte) error
	Delete(key string) error
	All(prefix string) iter.Seq2[string, []byte]
}

// ErrEnded is a process that was to run its program and has ended before: its exit
// record says how.
var ErrEnded = errors.New("it has ended")

// CommandError is a command that ran and failed, as the Launcher's LaunchCommand
// tells of it.
type CommandError struct {
	Status int    // as Exit.Status
	Stderr string // the last of what it wrote to its standard error
}

// Error implements error.
func (e *CommandError) Error() string {
	text := "command ended with status " + strconv.Itoa(e.Status)
	if last := strings.TrimSpace(e.Stderr); last != "" {
		text += ": " + last
	}
	return text
}
