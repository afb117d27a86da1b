package core

import (
	"errors"
	"strings"
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

// ProcessConfig asks for a further process, an exec, in a running container.
type ProcessConfig struct {
	ID   ProcessID // "": the engine generates one
	Spec *specs.Process
	IO   IO
	Data []byte
	// Attach opens a stream in the same step, so that no output is missed.
	Attach *StreamOptions
	// Ephemeral processes belong to the call that started them: an agent that finds one after its
	// own restart kills it.
	Ephemeral bool
	// KeepExit keeps the end of the process in Container.Exits when the process's own record is
	// removed.
	KeepExit bool
	// Quiet processes have no record and no events: they are for probes, which are many and need no
	// history. One exists until it is removed or its container ends, which kills it, and in this
	// agent only: the next one kills it, and so does this one when its launch was cut off by the
	// keeper's death. Its output is held for Attach (IO.Hold) or dropped, so it has no sinks; it has
	// no Data and keeps no exit. The unscoped view starts none.
	Quiet bool
}

// Process is one process that was started or can be started.
type Process struct {
	ID          ProcessID    `json:"id,omitempty"`
	Pid         int          `json:"pid,omitempty"`     // as the host sees it; 0 before it is created and after it has ended
	Session     int          `json:"session,omitempty"` // of an exec: the id of its own session, 0 for none; processes of it may outlive the exec
	Args        []string     `json:"args,omitempty"`
	TTY         bool         `json:"tty,omitempty"`
	Hold        bool         `json:"hold,omitempty"`
	Ephemeral   bool         `json:"ephemeral,omitempty"`
	KeepExit    bool         `json:"keep_exit,omitempty"`
	Started     time.Time    `json:"started,omitzero"`
	Finished    time.Time    `json:"finished,omitzero"`
	Autopsy     *Autopsy     `json:"autopsy,omitempty"` // nil until it has ended
	StopRequest *StopRequest `json:"asked,omitempty"`   // the last request to end it; becomes Autopsy.StopRequest
	Data        []byte       `json:"data,omitempty"`
}

// KeptExit is the end of an exec after the removal of its record.
type KeptExit struct {
	Process ProcessID `json:"process"`
	Autopsy Autopsy   `json:"autopsy"`
}

// Exit is how a process ended.
type Exit struct {
	Code   int       `json:"code"`             // 0..255; meaningless when Signal != 0
	Signal int       `json:"signal,omitempty"` // the signal that killed it
	Core   bool      `json:"core,omitempty"`   // the kernel has written a core dump of it
	At     time.Time `json:"at"`
	// Lost means that agent, keeper and nest were all gone when it ended, so that nobody saw how.
	// Code and Signal are then zero and mean nothing.
	Lost bool `json:"lost,omitempty"`
}

// LostCode is the exit status shown where a protocol needs a number for an exit that nobody saw.
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

// StartError means that execve refused the program, so the process never ran it.
type StartError struct {
	Errno syscall.Errno // the errno of execve
	Err   error
}

// Error returns the text of Err without the name of its class at the end, if that repeats the
// kernel's text.
func (e *StartError) Error() string {
	text := e.Err.Error()
	for _, class := range []string{": not found", ": failed precondition", ": permission denied", ": invalid argument"} {
		before, ok := strings.CutSuffix(text, class)
		for _, known := range []string{"no such file or directory", "exec format error", "permission denied", "operation not permitted", "is a directory", "not found in $path", "no such program"} {
			if ok && strings.Contains(strings.ToLower(before), known) {
				return before
			}
		}
	}
	return text
}

// Unwrap returns Err, for its class.
func (e *StartError) Unwrap() error { return e.Err }

// StartStatus returns the exit status that a shell shows for a program that err kept from
// starting: 127 when it does not exist, 126 when it cannot be executed, and 125 when it was not
// tried.
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
	StopRequest *StopRequest `json:"asked,omitempty"` // nil: nobody asked through this agent for its end
	Peak        uint64       `json:"peak,omitempty"`  // highest memory of the container's cgroup, bytes; 0 when unknown
	Limit       uint64       `json:"limit,omitempty"` // the memory limit in force, bytes; 0: none
	// Refused is how many processes and threads the kernel refused at the container's limit of
	// pids, and Throttled how often it slowed the container down at its memory.high, both since the
	// container was created; 0 when unknown.
	Refused   uint64   `json:"refused,omitempty"`
	Throttled uint64   `json:"throttled,omitempty"`
	Tail      []string `json:"tail,omitempty"` // last log lines, oldest first
	// Start is the runtime's error text when the program could not be started at all.
	Start   string `json:"start,omitempty"`
	Verdict string `json:"verdict"` // one sentence for people
	// LostOutput is how many bytes of its output no sink took.
	LostOutput uint64 `json:"lost_output,omitempty"`
	// EgressRefused has the last refusals of the sandbox's egress list before the end, oldest first. The engine adds them when
	// the sandbox's network ends, and the list's log with it.
	EgressRefused []EgressRefusal `json:"egress_refused,omitempty"`
}

// OOM describes an out-of-memory kill.
type OOM struct {
	Level  string `json:"level"`            // the cgroup that hit its limit: "container", "sandbox", "host" or a cgroup path; "" if unknown
	Victim int    `json:"victim,omitempty"` // pid, as the host sees it; 0 when the kernel log does not say
	Main   bool   `json:"main"`             // the victim was this very process, not a child of it or an exec
	Kills  uint64 `json:"kills"`
}

// UnhealthyCall is the Call of a StopRequest that nobody made: the program had failed its health
// check.
const UnhealthyCall = "its health check has failed"

// ShutdownCall is the Call of a StopRequest that the agent makes when the node shuts down. For a
// restart policy no caller has stopped the program.
const ShutdownCall = "the node shuts down"

// StopRequest names the caller of a stop, and its way.
type StopRequest struct {
	Owner  Owner     `json:"owner"`
	Call   string    `json:"call"`           // StopContainer, StopTask, "longshore stop", …
	User   string    `json:"user,omitempty"` // peer credentials where known, "uid 0"
	Signal int       `json:"signal,omitempty"`
	At     time.Time `json:"at"`
	// Stop means that the caller requested the end itself, with any signal; otherwise it sent a
	// signal that may end a process.
	Stop bool `json:"stop,omitempty"`
	// Incidental means that the signal is one that is sent for other purposes than an end, such
	// as SIGUSR1: it is why a process ended only when it ended by that very signal.
	Incidental bool `json:"incidental,omitempty"`
}
