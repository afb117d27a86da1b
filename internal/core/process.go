package core

import (
	"errors"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ProcessID names a process inside a container; Main is the container's own.
type ProcessID string

// Main is the ProcessID of a container's main process.
const Main ProcessID = ""

// Ref names one process on the node. A sandbox's tiny init has the sandbox's ID
// and Main.
type Ref struct {
	Container ID        `json:"container"`
	Process   ProcessID `json:"process,omitempty"`
}

// ProcessConfig asks for a further process in a running container.
type ProcessConfig struct {
	ID   ProcessID // "": the engine makes one
	Spec *specs.Process
	IO   IO
	Data []byte
	// Attach opens a stream in the same step, so that not a byte can be missed.
	Attach *StreamOptions
	// Ephemeral processes belong to the call that asked for them: when the
	// agent finds one after its own restart, it kills it.
	Ephemeral bool
	// KeepExit has the container's record keep how the process ended when the
	// process's own record goes: Container.Exits.
	KeepExit bool
}

// Process is one started, or startable, process.
type Process struct {
	ID          ProcessID    `json:"id,omitempty"`
	Pid         int          `json:"pid,omitempty"`     // as the host sees it; 0 before it is created and after it has ended
	Session     int          `json:"session,omitempty"` // of an exec: its session, which outlives it; 0 when it is not its own
	Args        []string     `json:"args,omitempty"`
	TTY         bool         `json:"tty,omitempty"`
	Hold        bool         `json:"hold,omitempty"`
	Ephemeral   bool         `json:"ephemeral,omitempty"`
	KeepExit    bool         `json:"keep_exit,omitempty"`
	Started     time.Time    `json:"started,omitzero"`
	Finished    time.Time    `json:"finished,omitzero"`
	Autopsy     *Autopsy     `json:"autopsy,omitempty"` // nil until it has ended
	StopRequest *StopRequest `json:"asked,omitempty"`   // the last request for its end; becomes Autopsy.StopRequest
	Data        []byte       `json:"data,omitempty"`
}

// KeptExit is how an exec ended whose own record is gone.
type KeptExit struct {
	Process ProcessID `json:"process"`
	Autopsy Autopsy   `json:"autopsy"`
}

// Exit is how a process ended.
type Exit struct {
	Code   int       `json:"code"`             // 0..255; meaningless when Signal != 0
	Signal int       `json:"signal,omitempty"` // the signal that killed it
	At     time.Time `json:"at"`
	// Lost: agent, keeper and nest were all gone when it ended, so nobody can
	// know how. Code and Signal are then zero and mean nothing.
	Lost bool `json:"lost,omitempty"`
}

// LostCode is the exit status shown where a protocol wants a number for an
// exit that nobody could know.
const LostCode = 255

// Status returns the exit as a shell would: the code, or 128 plus the signal,
// or LostCode.
func (e Exit) Status() int {
	switch {
	case e.Lost:
		return LostCode
	case e.Signal != 0:
		return 128 + e.Signal
	default:
		return e.Code
	}
}

// StartError is a program that execve refused: the process has not run it. Its text
// is that of Err.
type StartError struct {
	Errno syscall.Errno // what execve answered
	Err   error
}

// Error implements error.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns Err, for its class.
func (e *StartError) Unwrap() error { return e.Err }

// StartStatus is what a shell shows as the exit status of a process that err has
// kept from being started: 127 when there is no such program, 126 when it cannot be
// executed, and 125 when it was not tried.
func StartStatus(err error) int {
	var refused *StartError
	switch {
	case !errors.As(err, &refused):
		return 125
	case refused.Errno == syscall.ENOENT:
		return 127
	default:
		return 126
	}
}

// Autopsy is the one record that says why a process ended; every face reads it.
type Autopsy struct {
	Exit        Exit         `json:"exit"`
	OOM         *OOM         `json:"oom,omitempty"`   // nil: no out-of-memory kill happened in its cgroup while it ran
	StopRequest *StopRequest `json:"asked,omitempty"` // nil: nobody here asked for its end
	Peak        uint64       `json:"peak,omitempty"`  // highest memory of the container's cgroup, bytes; 0 when unknown
	Limit       uint64       `json:"limit,omitempty"` // the memory limit that held, bytes; 0: none
	Tail        []string     `json:"tail,omitempty"`  // last log lines, oldest first
	// Start is set when the program could not be started at all: the
	// runtime's own words.
	Start   string `json:"start,omitempty"`
	Verdict string `json:"verdict"` // one sentence for people
}

// OOM tells of an out-of-memory kill.
type OOM struct {
	Level  string `json:"level"`            // the cgroup whose limit was hit: "container", "sandbox", "host" or a cgroup path
	Victim int    `json:"victim,omitempty"` // pid, as the host sees it; 0 when the kernel log could not tell
	Main   bool   `json:"main"`             // the victim was this very process, not a child or an exec
	Kills  uint64 `json:"kills"`
}

// StopRequest says who asked for a process to end, and how.
type StopRequest struct {
	Owner  Owner     `json:"owner"`
	Call   string    `json:"call"`           // StopContainer, StopTask, "longshore stop", …
	User   string    `json:"user,omitempty"` // peer credentials where known, "uid 0"
	Signal int       `json:"signal,omitempty"`
	At     time.Time `json:"at"`
	// Stop says that the end itself was asked for, by whatever signal; else a
	// signal was sent that may end a process.
	Stop bool `json:"stop,omitempty"`
}
