package core

import (
	"context"
	"errors"
	"time"
)

// Sleeper gives back the memory of processes that rest. The processes keep everything else: descriptors,
// connections, threads.
type Sleeper interface {
	// Sleep has the memory of all processes in and below a cgroup written to files, gives it back, and
	// freezes the cgroup. The container is as it was after an error. FailedPrecondition when it cannot
	// sleep, ResourceExhausted when the disk is full.
	Sleep(ctx context.Context, id ID, cgroup CgroupRef) (Slept, error)
	// Wake thaws the cgroup, and returns when the processes run. Their memory comes back as they use it,
	// and the rest behind that. done is called once when all of it is back, and earlier with an error
	// when a thread waits for memory that it cannot get. Wake continues the work of an earlier agent.
	// ErrMemoryLost: the cgroup is still frozen, and must be killed before it is thawed.
	Wake(ctx context.Context, id ID, cgroup CgroupRef, done func(Woken)) error
	// Stage says how far a container has come that an earlier agent has put to sleep or woken.
	// ErrMemoryLost when its processes must not run again.
	Stage(ctx context.Context, id ID) (SleepStage, error)
	// Forget removes everything that is kept of a container that has woken or ended. It is idempotent.
	Forget(ctx context.Context, id ID) error
	// Asleep returns the containers of which something is kept.
	Asleep(ctx context.Context) ([]ID, error)
}

// SleepStage is a step between awake and asleep.
type SleepStage int

// The stages. Only in StageAsleep all memory is out.
const (
	StageNone  SleepStage = iota // nothing is kept of it
	StageAwake                   // nothing is missing
	StageAsleep
	StageWaking
)

// ErrMemoryLost says that the memory of a sleeping container is lost: its processes would find empty
// pages.
var ErrMemoryLost = errors.New("the memory of the sleeping container is lost")

// Slept describes a sleep.
type Slept struct {
	Processes int    `json:"processes"`
	Given     uint64 `json:"given"`  // bytes of memory that were given back
	Stored    uint64 `json:"stored"` // bytes on disk
	// Resident is the memory that could not be given back.
	Resident []Resident `json:"resident,omitempty"`
}

// Resident is memory that stays where it is during a sleep, or a process of which all stays.
type Resident struct {
	Pid   int    `json:"pid"`
	Why   string `json:"why"`
	Bytes uint64 `json:"bytes,omitempty"` // 0 when all of the process stays
}

// Woken describes the end of a wake, or why it does not come.
type Woken struct {
	Faults uint64 // that waited for a page
	Pages  uint64
	Took   time.Duration // until all pages were back
	// Err says why a thread cannot go on. Short: its cgroup's memory limit.
	Err   error
	Short bool
}

// Rest is a container's sleep, or its last one.
type Rest struct {
	Phase RestPhase `json:"phase,omitempty"`
	Slept
	Since time.Time `json:"since,omitzero"` // when it fell asleep
	// Woken is when it woke, and By names the reason.
	Woken time.Time `json:"woken,omitzero"`
	By    string    `json:"by,omitempty"`
	// Faults, Pages and Back describe the wake, when it is complete: Back is how long it took until all
	// memory was back.
	Faults uint64        `json:"faults,omitempty"`
	Pages  uint64        `json:"pages,omitempty"`
	Back   time.Duration `json:"back,omitempty"`
}

// RestPhase is a step of a sleep.
type RestPhase string

// The phases of a sleep. A container that falls asleep or sleeps is ContainerAsleep, one that wakes is
// running. RestOver is that of a container whose memory is all back.
const (
	RestFalling RestPhase = "falling"
	RestAsleep  RestPhase = "asleep"
	RestWaking  RestPhase = "waking"
	RestOver    RestPhase = ""
)

// MemoryOut reports whether memory of the container may be in files.
func (c *Container) MemoryOut() bool { return c.Rest != nil && c.Rest.Phase != RestOver }
