package core

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sleeper stores the memory of idle processes in files and frees it. The processes keep their descriptors,
// connections and threads.
type Sleeper interface {
	// Watch calls knock once when a packet arrives in a network namespace that a process must handle. It
	// returns when no packet can be missed, and ends with Forget. kept says that an earlier agent has
	// watched all the time.
	Watch(ctx context.Context, id ID, namespace string, knock func()) (kept bool, err error)
	// Sleep writes the memory of all processes in and below a cgroup to files, frees it, and freezes the
	// cgroup. After an error the caller must call Wake. FailedPrecondition when it cannot sleep,
	// ResourceExhausted when the disk is full.
	Sleep(ctx context.Context, id ID, cgroup CgroupRef) (Slept, error)
	// Wake thaws the cgroup, and returns when the processes run. A page server restores their memory:
	// first the pages that they use, then all others. Wake calls done when all pages are restored, or with
	// an error when a thread waits for a page that cannot be restored. Wake continues the work of an
	// earlier agent. ErrMemoryLost means that the cgroup is still frozen. The caller must kill it before it
	// thaws it.
	Wake(ctx context.Context, id ID, cgroup CgroupRef, done func(Woken)) error
	// Stage returns the stage of a container. ErrMemoryLost means that its processes must not run again.
	Stage(ctx context.Context, id ID) (SleepStage, error)
	// Forget removes the files and descriptors of a container that has woken or ended. It is idempotent.
	Forget(ctx context.Context, id ID) error
	// Asleep returns the containers that have files or descriptors.
	Asleep(ctx context.Context) ([]ID, error)
}

// SleepStage is a step between awake and asleep.
type SleepStage int

// The stages.
const (
	StageNone  SleepStage = iota // the container has no files
	StageAwake                   // no page is missing
	StageAsleep
	StageWaking
)

// ErrMemoryLost says that the memory of a sleeping container is lost: its processes would find empty
// pages.
var ErrMemoryLost = errors.New("the memory of the sleeping container is lost")

// Slept describes a sleep.
type Slept struct {
	Processes int    `json:"processes"`
	Given     uint64 `json:"given"`  // bytes of freed memory
	Stored    uint64 `json:"stored"` // bytes on disk, compressed, or in the swap
	// Swap says that the memory is in the node's swap, and not in a file.
	Swap bool `json:"swap,omitempty"`
	// Resident lists the memory that a Sleeper cannot free.
	Resident []Resident `json:"resident,omitempty"`
}

// Resident is memory that a process keeps while it sleeps.
type Resident struct {
	Pid   int    `json:"pid"`
	Why   string `json:"why"`
	Bytes uint64 `json:"bytes,omitempty"` // 0 when the process keeps all
}

// Woken describes the end of a wake, or why it does not come.
type Woken struct {
	Faults uint64 // that waited for a page
	Pages  uint64
	Took   time.Duration // until all pages were restored
	// Err is the reason why a thread cannot continue. Short means that the reason is the memory limit of
	// the cgroup.
	Err   error
	Short bool
}

// Rest is a container's sleep, or its last one.
type Rest struct {
	Phase RestPhase `json:"phase,omitempty"`
	Slept
	Since time.Time `json:"since,omitzero"` // when it fell asleep
	// Woken is the time of its wake, and By the reason.
	Woken time.Time `json:"woken,omitzero"`
	By    string    `json:"by,omitempty"`
	// Faults, Pages and Back describe a complete wake. Back is the time from the wake until all pages were
	// restored.
	Faults uint64        `json:"faults,omitempty"`
	Pages  uint64        `json:"pages,omitempty"`
	Back   time.Duration `json:"back,omitempty"`
	// Checkpoint describes the container's last checkpoint or restore; nil if there was none. Since
	// is zero if the container never slept.
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
}

// RestPhase is a step of a sleep.
type RestPhase string

// The phases of a sleep. In RestFalling and RestAsleep the container is ContainerAsleep, in RestWaking it
// is running. RestOver means that all memory is restored.
const (
	RestFalling RestPhase = "falling"
	RestAsleep  RestPhase = "asleep"
	RestWaking  RestPhase = "waking"
	RestOver    RestPhase = ""
)

// MemoryOut reports whether memory of the container may be in files only.
func (c *Container) MemoryOut() bool { return c.Rest != nil && c.Rest.Phase != RestOver }

// SleepAfterLabel is the label of a container that sleeps when it has been idle for so long: see
// ContainerConfig.SleepAfter.
const SleepAfterLabel = "longshore.sleep-after"

// MinSleepAfter is the shortest time of SleepAfterLabel.
const MinSleepAfter = time.Second

// SleepAfter parses a time of SleepAfterLabel.
func SleepAfter(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < MinSleepAfter {
		return 0, fmt.Errorf("%q is no duration of at least %v, such as 90s or 10m", text, MinSleepAfter)
	}
	return d, nil
}
