package core

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Errors of every port carry a class of github.com/containerd/errdefs
// (NotFound, AlreadyExists, InvalidArgument, FailedPrecondition, Unavailable,
// ResourceExhausted, DataLoss, …) or the context's own error. Text is lower
// case, operation first.

// Runtime starts containers. It executes nothing itself: it prepares plans or command lines and
// has the Launcher carry them out, so that containers are the keeper's children.
type Runtime interface {
	// Name is the handler's name in the config: native, crun, runc, …
	Name() string
	Features(ctx context.Context) (RuntimeFeatures, error)
	// Create makes a container's main process and returns its pid. The process waits before its
	// program until Start, unless Run is set. The bundle directory holds rootfs/, mounted; Create
	// writes config.json. A *StartError means that only the program was refused: everything else
	// of the container is right.
	Create(ctx context.Context, c RuntimeCreate) (pid int, err error)
	// Start lets the waiting process execute its program. It succeeds when the program runs
	// already. It returns an ErrEnded when the process has ended, and a *StartError when the
	// program was refused.
	Start(ctx context.Context, id ID) error
	// Exec starts a further process and returns its pid and, when asked for, a stream.
	Exec(ctx context.Context, e RuntimeExec) (Launched, error)
	Pause(ctx context.Context, id ID) error
	Resume(ctx context.Context, id ID) error
	Update(ctx context.Context, id ID, res *specs.LinuxResources) error
	// Delete removes the runtime's state of a container. With force it first kills running
	// processes. It succeeds when there is nothing.
	Delete(ctx context.Context, id ID, force bool) error
	// List returns the containers that the runtime stores something about, for check.
	List(ctx context.Context) ([]ID, error)
}

// NamedRuntime is a Runtime that runs only containers that name it: it never replaces another one.
type NamedRuntime interface {
	Runtime
	OnlyWhenNamed()
}

// RuntimeCreate asks for a container.
type RuntimeCreate struct {
	ID     ID
	Bundle string
	Spec   *specs.Spec
	IO     IO
	// Cgroup is the container's cgroup; Spec.Linux.CgroupsPath names the same one.
	Cgroup CgroupRef
	// Limited says that Cgroup exists and already has the limits of Spec.
	Limited bool
	// Levels are the container's cgroup and those above it, nearest first. The exit record has
	// their out-of-memory counters.
	Levels []CgroupRef
	// UID and GID own the standard streams' pipes and terminals, as host ids.
	UID, GID uint32
	// Given are descriptors that the program gets from 3 on, in this order. The caller keeps and
	// closes its own.
	Given []Given
	// Identity identifies the program.
	Identity Identity
	// Confine, unless nil, makes the program hold nothing but Given and its standard streams.
	Confine *Confine
	// Confined, unless nil, is called with the part of Confine that the kernel enforces.
	Confined func(Confinement)
	// Grants is for the runtime of programs that hold only their descriptors.
	Grants GrantAsk
	// HookID is the id that hooks read as the container's; "" is ID.
	HookID string
	// Init says that this is the tiny init of a sandbox.
	Init bool
	// Run starts the program at once, as Start would. When that fails, nothing of the container
	// is left.
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

// RuntimeFeatures are the abilities of a runtime.
type RuntimeFeatures struct {
	Path               string // of the program; "" for native
	Version            string
	OCIVersionMax      string
	UserNamespaces     bool
	IDMappedMounts     bool
	RecursiveIDMaps    bool // the mount option ridmap
	RecursiveReadOnly  bool
	SupplementalGroups bool
	CgroupNamespaces   bool
	Seccomp            bool
	Checkpoint         bool
	CgroupV2           bool
	Systemd            bool
}

// Launcher is the part of the keeper that starts processes. They become the keeper's children,
// and so outlive the agent. Only runtimes launch.
type Launcher interface {
	// LaunchCommand runs a command that leaves a process behind, and adopts that process under
	// its Ref. It returns a *CommandError when the command ran and failed.
	LaunchCommand(ctx context.Context, l CommandLaunch) (Launched, error)
	// LaunchPlan runs a plan in a child of the keeper. Its last step executes the program.
	LaunchPlan(ctx context.Context, l PlanLaunch) (Launched, error)
	// Release lets a parked process execute its program, and returns when it has. It succeeds
	// when the program runs already, and returns an ErrEnded when the process has ended.
	Release(ctx context.Context, ref Ref) error
	// Advance lets a process that waits for its create hooks continue, and returns when it
	// is parked before its program.
	Advance(ctx context.Context, ref Ref) error
	// Run runs a command until it ends.
	Run(ctx context.Context, c Command) (CommandResult, error)
	// RunPlan runs a program that a plan executes until it ends.
	RunPlan(ctx context.Context, p PlannedCommand) (CommandResult, error)
}

// Supervisor is the part of the keeper that watches processes. The keeper is the parent of every
// container process, owns its standard streams, and outlives the agent.
type Supervisor interface {
	// Signal sends a signal to one process by its pidfd; NotFound when it has ended.
	Signal(ctx context.Context, ref Ref, signal int) error
	Streams(ctx context.Context, ref Ref, opts StreamOptions) (*Streams, error)
	Resize(ctx context.Context, ref Ref, size Size) error
	CloseStdin(ctx context.Context, ref Ref) error
	// ReopenSinks opens the path of every sink again, after somebody renamed the file.
	ReopenSinks(ctx context.Context, ref Ref) error
	// Processes lists all processes that were launched and not yet forgotten.
	Processes(ctx context.Context) ([]Supervised, error)
	// Exits yields the exits that are not acknowledged: first those that have happened, then new
	// ones. An exit is yielded when all output of the process is in its sinks. The sequence ends
	// with ctx, or with an error when the connection to the keeper is lost; call Exits again
	// then.
	Exits(ctx context.Context) iter.Seq2[ProcessExit, error]
	// Ack tells the keeper that an exit is recorded; it will not be yielded again.
	Ack(ctx context.Context, ref Ref) error
	// Forget drops an ended process with its streams, held output and exit record. It succeeds
	// when there is none.
	Forget(ctx context.Context, ref Ref) error
	Status(ctx context.Context) (SupervisorStatus, error)
}

// Command is a command line to run. It gets nothing of the agent's environment.
type Command struct {
	Args []string // Args[0] is an absolute path, unless Path is set
	Env  []string
	Dir  string
	// Path is the program's file when Args[0] is another name; "" is Args[0].
	Path string
	// Stdin is the program's whole input.
	Stdin []byte
	// HideUnified runs the command where /sys/fs/cgroup/unified is not mounted, because crun
	// refuses a v2 tree that owns controllers beside v1.
	HideUnified bool
}

// PlannedCommand is a program to run that a plan executes.
type PlannedCommand struct {
	// Plan is the list of system calls (internal/runtime/native/plan) that a child of the keeper
	// makes.
	Plan []byte
	// The plan joins the namespaces of the process Target; the zero Ref is none.
	Target Ref
	// Stdin is the program's whole input.
	Stdin []byte
}

// CommandResult is how a command ended. Stdout is at most 1 MiB, Stderr the
// last 4 KiB.
type CommandResult struct {
	Status int // in the form of Exit.Status
	Stdout []byte
	Stderr string
}

// Launch is the part that CommandLaunch and PlanLaunch have in common.
type Launch struct {
	Ref    Ref
	IO     IO
	Attach *StreamOptions // nil opens no stream
	// UID and GID own the standard streams' pipes and terminals, as host ids.
	UID, GID uint32
	// Levels are the out-of-memory counters that the keeper reads when the process ends, before
	// the cgroups are removed.
	Levels []OOMLevel
	// Peak is the file with the cgroup's highest memory use, "" for none.
	Peak string
}

// CommandLaunch launches a process with a command that ends when it has started the process, as
// an OCI runtime does.
type CommandLaunch struct {
	Launch
	Command Command // without Path and Stdin
	// PidFile is where the command writes the process's pid, absolute.
	PidFile string
	// ConsoleSocket is the socket at which the keeper receives the pty's master when IO.TTY is
	// set. The path must fit into a socket address.
	ConsoleSocket string
}

// PlanLaunch launches a process with a plan: a child of the keeper runs it, and its last step
// executes the program.
type PlanLaunch struct {
	Launch
	// Plan is the list of system calls (internal/runtime/native/plan).
	Plan []byte
	// Given are the descriptors of the program. The plan finds them in slots. The caller keeps and
	// closes its own.
	Given []*os.File
	// Park stops the process before its program until Release is called.
	Park bool
	// The plan joins the namespaces of the process Target; the zero Ref is none.
	Target Ref
}

// OOMLevel names the out-of-memory counter of one cgroup.
type OOMLevel struct {
	// Path is memory.oom_control (v1) or memory.events (v2): a file with a line "oom_kill N".
	// LocalPath is v2's memory.events.local, or "".
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
	// Lost counts output bytes that no sink took, for example because the disk was full.
	Lost uint64
}

// ProcessExit is one exit record.
type ProcessExit struct {
	Ref  Ref
	Pid  int
	Exit Exit
	// OOMKills says by how much each counter of Launch.Levels grew while the process lived;
	// OOMLocal the same for LocalPath, which counts only kills by the limit of that very cgroup
	// (v2).
	OOMKills []uint64
	OOMLocal []uint64
	Peak     uint64
	LostOut  uint64 // output bytes dropped
}

// SupervisorStatus is the keeper's state, for doctor and metrics.
type SupervisorStatus struct {
	Version   string
	KeeperPid int
	NestPid   int // 0: there is no nest, and a keeper that dies now loses exits
	Started   time.Time
	Processes int
	// Uncopied is how many of the processes end if keeper and nest die together, because this agent
	// has no copies of their descriptors.
	Uncopied int
	Pending  int // exits not acknowledged
	Lost     uint64
}

// Exposed describes what the death of one or two of agent, keeper and nest would lose now; "" if
// nothing, as it should be.
func (s SupervisorStatus) Exposed() string {
	switch {
	case s.NestPid == 0:
		return fmt.Sprintf("the keeper, pid %d, has lost its nest and could not start another one: if the keeper dies, exits of its %d processes are lost", s.KeeperPid, s.Processes)
	case s.Uncopied > 0:
		return fmt.Sprintf("the agent has no copies of what keeper and nest hold of %d processes: if both die together, these are killed", s.Uncopied)
	}
	return ""
}

// Network gives a network namespace its interfaces and takes them away again.
type Network interface {
	// Setup makes the interfaces that the request's Config asks for.
	Setup(ctx context.Context, req NetworkRequest) (NetworkStatus, error)
	Check(ctx context.Context, req NetworkRequest) error
	// Attach gives a sandbox that is set up one more interface, and returns its whole network as it
	// is then; after an error it is as it was. AlreadyExists when it is on that network, or when
	// another sandbox has an address that is wanted; NotFound, InvalidArgument.
	// Recovery removes interfaces that are missing in Last of later requests.
	Attach(ctx context.Context, req NetworkRequest, a Attachment) (NetworkStatus, error)
	// Detach removes a sandbox's interface on a network and returns the remaining status. Ports of
	// the host and the default route move to another interface that leads out, the first of those
	// that are left. It is idempotent.
	Detach(ctx context.Context, req NetworkRequest, network string) (NetworkStatus, error)
	// Publish replaces the host ports of a sandbox that is set up; without want it gives them back. Errors are those of Setup
	// and leave no ports. Ports that CNI plugins publish stay as they are.
	Publish(ctx context.Context, req NetworkRequest, want []Port) (NetworkStatus, error)
	// Restrict replaces the egress list of a sandbox that is set up by that of req.Config, and ends connections that it does not
	// permit. InvalidArgument for a list that is not valid; FailedPrecondition where none can be enforced. After an error the rules
	// are those of one of the two lists.
	Restrict(ctx context.Context, req NetworkRequest) (NetworkStatus, error)
	// Teardown is idempotent and works when the namespace no longer exists.
	Teardown(ctx context.Context, req NetworkRequest) error
	Info(ctx context.Context) (NetworkInfo, error)
	// SetRanges changes the address ranges for sandboxes that are created later.
	SetRanges(ctx context.Context, cidrs []string) error
	// Sandboxes returns the sandboxes that hold addresses, ports or links, for check.
	Sandboxes(ctx context.Context) ([]ID, error)
	// Stats returns the traffic of each sandbox's interfaces, without loopback. Sandboxes on the
	// host's network, or without interfaces, are left out. One call for many sandboxes costs
	// little more than a call for one.
	Stats(ctx context.Context, reqs []NetworkRequest) (map[ID][]NetStats, error)
}

// EgressPolicy decides which egress lists sandboxes have: see NetworkConfig.Egress.
type EgressPolicy interface {
	// Complete gives a new sandbox its list: its own, that of its label EgressLabel, or the node's. InvalidArgument for a list that is
	// not valid or cannot be enforced in the sandbox's network; PermissionDenied for one that is not within the node's.
	Complete(owner Owner, cfg *SandboxConfig) error
	// Narrow returns the list that a sandbox may have in the place of its own. An empty one asks for the node's. Errors are those of
	// Complete.
	Narrow(owner Owner, labels map[string]string, list []string) ([]string, error)
}

// Cgroups makes, limits, watches and removes cgroups on v1, v2 and hybrid.
type Cgroups interface {
	Mode() CgroupMode
	// Place returns where an object named name goes below parent, or below the engine's own tree
	// when parent is zero. It creates nothing.
	Place(parent Cgroup, above CgroupRef, name string) (CgroupRef, error)
	Create(ctx context.Context, ref CgroupRef, res *specs.LinuxResources) error
	Update(ctx context.Context, ref CgroupRef, res *specs.LinuxResources) error
	// Resources reads back the limits that the kernel enforces.
	Resources(ctx context.Context, ref CgroupRef) (*specs.LinuxResources, error)
	// MemoryLimit reads back how many bytes ref may use; 0 is no limit. It reads one file, where
	// Resources reads a dozen.
	MemoryLimit(ctx context.Context, ref CgroupRef) (uint64, error)
	Freeze(ctx context.Context, ref CgroupRef, frozen bool) error
	// Kill sends SIGKILL to every process in and below ref, including those forked meanwhile.
	Kill(ctx context.Context, ref CgroupRef) error
	Pids(ctx context.Context, ref CgroupRef) ([]int, error)
	// Remove is idempotent. It does not remove adopted cgroups.
	Remove(ctx context.Context, ref CgroupRef) error
	// Stats reads the fields that want selects, but for Root and Net.
	Stats(ctx context.Context, ref CgroupRef, want StatsFields) (Stats, error)
	// OOMLevel returns the files that count out-of-memory kills in ref, and the one with its
	// peak.
	OOMLevel(ref CgroupRef) (level OOMLevel, peak string)
	// List returns the cgroups (as CgroupRef.Path) below the engine's own tree, sorted.
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
	// Unmount unmounts everything at and below target. It is idempotent.
	Unmount(ctx context.Context, target string) error
	// Mounted lists mount points below dir, for check.
	Mounted(ctx context.Context, dir string) ([]string, error)
}

// Images stores image content once, and names and pinned marks per owner. These are the parts that
// the engine uses; faces use ImageTransfers beside it.
type Images interface {
	Pull(ctx context.Context, owner Owner, ref string, opts PullOptions) (Image, error)
	// Get finds an image by name (short names resolve), by name@digest, by ID,
	// or by a prefix of the ID that is unique.
	Get(ctx context.Context, owner Owner, ref string) (Image, error)
	List(ctx context.Context, owner Owner) ([]Image, error) // owner "" lists all
	// Tag adds a name. Without a target it keeps the image when its other names go, until it is removed or pruned.
	Tag(ctx context.Context, owner Owner, source, target string) error
	// Remove removes a name, or all names when ref is an ID. Content that nothing refers to any
	// more is deleted.
	Remove(ctx context.Context, owner Owner, ref string) error
	Checkout(ctx context.Context, req CheckoutRequest) (Checkout, error)
	Discard(ctx context.Context, container ID) error // idempotent
	Checkouts(ctx context.Context) ([]ID, error)
	// RootStats returns the size of a container's writable layer. It may be some seconds old;
	// RootStats.At says when it was measured.
	RootStats(ctx context.Context, container ID) (RootStats, error)
	// Prune removes the owner's names of each image if keep returns false for it, then collects
	// garbage.
	Prune(ctx context.Context, owner Owner, keep func(Image) bool) (freed uint64, err error)
	Usage(ctx context.Context) (ImageUsage, error)
}

// ImageTransfers moves images between the store and archives, registries and containers' roots. It
// knows no verb: a face that adds images to an owner's then calls Added of the engine's Images.
type ImageTransfers interface {
	// Changes calls fn with each difference between a container's root and its image, a directory
	// before its content. FailedPrecondition for a root that is read-only or of no image.
	Changes(ctx context.Context, container ID, use RootUse, fn func(FileChange) error) error
	// Commit makes an image of a container's root and the image that it was made of.
	Commit(ctx context.Context, owner Owner, req CommitRequest) (Image, error)
	Import(ctx context.Context, owner Owner, archive io.Reader, opts ImportOptions) ([]Image, error)
	// ImportRoot makes an image of a tar of a root file system, which may be compressed.
	ImportRoot(ctx context.Context, owner Owner, root io.Reader, opts RootImport) (Image, error)
	Export(ctx context.Context, owner Owner, refs []string, w io.Writer) error
	// Push stores an image in the registry of its name, or of another one.
	Push(ctx context.Context, owner Owner, ref string, opts PushOptions) error
	// Resolve asks a registry for the image of a name. It stores nothing.
	Resolve(ctx context.Context, ref string, opts PullOptions) (RemoteImage, error)
	// Tags asks a registry for the tags of a repository.
	Tags(ctx context.Context, repo string, opts PullOptions) ([]string, error)
	// Login asks a registry whether it takes credentials. Nothing is stored.
	Login(ctx context.Context, host string, opts PushOptions) error
}

// ImageUsage is the disk usage of the whole store.
type ImageUsage struct {
	Path   string // the filesystem's mount point or the store's directory
	Bytes  uint64
	Inodes uint64
}

// Volumes stores named directories that outlive containers.
type Volumes interface {
	// Create stores a volume. When the name is in use it returns the volume there is and
	// AlreadyExists, or FailedPrecondition when that has other options.
	Create(ctx context.Context, owner Owner, cfg VolumeConfig) (Volume, error)
	Get(ctx context.Context, owner Owner, name string) (Volume, error)
	List(ctx context.Context, owner Owner) ([]Volume, error)
	Remove(ctx context.Context, owner Owner, name string) error
	// Filled records that the image's content has been copied into the volume, which happens at
	// its first use.
	Filled(ctx context.Context, owner Owner, name string) error
	// Source returns the mount of a volume with options while containers use it, with the names of
	// servers resolved. It may contain passwords. FailedPrecondition when the volume has no
	// options.
	Source(ctx context.Context, owner Owner, name string) (Mount, error)
}

// VolumeConfig is a volume to create.
type VolumeConfig struct {
	Name   string
	Labels map[string]string
	// Options define the volume's mount, as those of Docker's driver "local" do: type, device and
	// o. Without any, it is a directory of the node. They may contain passwords.
	Options map[string]string
}

// Volume is a named directory.
type Volume struct {
	Owner Owner  `json:"owner"`
	Name  string `json:"name"`
	// Path has the content; that of a volume with options only while containers use it.
	Path    string            `json:"path"`
	Labels  map[string]string `json:"labels,omitempty"`
	Options map[string]string `json:"options,omitempty"` // with secrets hidden
	Created time.Time         `json:"created"`
	Filled  bool              `json:"filled"`
	// Damaged describes the damage of its record, with advice. Only owner and name are known then,
	// and it cannot be used.
	Damaged string `json:"-"`
}

// AnonymousLabel marks volumes without a name of their own: they were made for one container, and
// nobody can ask for them once it is gone.
const AnonymousLabel = "longshore.anonymous"

// Anonymous reports whether the volume was made for one container.
func (v Volume) Anonymous() bool { return v.Labels[AnonymousLabel] != "" }

// OOMLog reads reports of out-of-memory kills in the kernel log.
type OOMLog interface {
	// Victims returns the kills since the given time, oldest first, or nil
	// when the kernel log cannot be read.
	Victims(ctx context.Context, since time.Time) []OOMVictim
}

// OOMVictim is one line of the kernel log.
type OOMVictim struct {
	At     time.Time
	Pid    int
	Memcg  string // the cgroup that hit its limit; "" for the whole machine
	Victim string // the cgroup that the victim was in
}

// Store keeps the engine's records. Events are appended in the same transaction
// as the change they tell of.
type Store interface {
	View(fn func(Tx) error) error
	Update(fn func(Tx) error) error
	// Wait blocks until an event newer than seq exists, or ctx ends.
	Wait(ctx context.Context, seq uint64) error
	// Scope returns the face's own key-value store. With durable it survives a boot, and Put
	// returns only when the value is synced.
	Scope(owner Owner, durable bool) KV
	// LostObjects returns the objects that existed when the node went down, if this is the first
	// store opened since: they are in the event log, and their records are gone, but for those of
	// durable objects. Its removal or its return takes an object off.
	LostObjects() []LostObject
	// Sync returns when all records of durable objects are where they outlive a boot, together with
	// the events up to them. Without it they get there within about a second.
	Sync() error
	Close() error
}

// LostObject is an object that lost its record when the node restarted.
type LostObject struct {
	Owner     Owner       `json:"owner"`
	Key       Key         `json:"key"`
	Sandbox   ID          `json:"sandbox"`
	Container ID          `json:"container,omitempty"` // "" for a sandbox
	Running   bool        `json:"running,omitempty"`   // its main process was started and had not ended
	Execs     []ProcessID `json:"execs,omitempty"`     // execs that were started and had not ended
}

// Tx is one transaction. It must not be used after its function has returned.
type Tx interface {
	Sandboxes() Table[Sandbox]
	Containers() Table[Container]
	// ContainersOf yields the containers of one sandbox, oldest first, without reading others.
	// Each is the caller's own copy.
	ContainersOf(sandbox ID) iter.Seq[Container]
	// StoredOf is ContainersOf, but yields the stored objects themselves, as Table.Stored does.
	StoredOf(sandbox ID) iter.Seq[*Container]
	Append(Event) (seq uint64, err error)
	// Events yields the events after since, oldest first; OutOfRange when some of them were
	// trimmed, or when since is beyond LastSeq.
	Events(since uint64) iter.Seq2[Event, error]
	// LastSeq is the Seq of the newest event, 0 before the first.
	LastSeq() uint64
}

// Table holds one kind of object. It returns copies that the caller owns, except from Stored and
// Peek.
type Table[T any] interface {
	Get(id ID) (T, error)
	ByKey(owner Owner, key Key) (T, error)
	Put(T) error // AlreadyExists when another object has the same Owner and Key
	Delete(id ID) error
	All(owner Owner) iter.Seq2[T, error] // owner "" is every owner
	// Stored yields the stored objects themselves. Callers must not change them, and may keep
	// them: Put stores a new object.
	Stored(owner Owner) iter.Seq[*T]
	// Peek returns the stored object itself, as Stored does.
	Peek(id ID) (*T, error)
}

// KV is a small key-value store.
type KV interface {
	Get(key string) ([]byte, error)
	Put(key string, value []byte) error
	Delete(key string) error
	All(prefix string) iter.Seq2[string, []byte]
}

// ErrEnded means that a process that was to execute its program has already ended; its exit
// record says how.
var ErrEnded = errors.New("it has ended")

// CommandError means that the command of a LaunchCommand ran and failed.
type CommandError struct {
	Status int    // in the form of Exit.Status
	Stderr string // the end of its standard error
}

// Error implements error.
func (e *CommandError) Error() string {
	text := "command ended with status " + strconv.Itoa(e.Status)
	if last := strings.TrimSpace(e.Stderr); last != "" {
		text += ": " + last
	}
	return text
}
