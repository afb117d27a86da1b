// Package autopsy determines why a process ended. It is one pure function from the facts of keeper,
// kernel and records to the one record that every face reads.
//
// It reads nothing itself and does not know the engine. Start at Make.
package autopsy

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Input has all facts about one ended process.
type Input struct {
	Exit core.Exit
	Pid  int
	// Start is the runtime's error if the program could not be started.
	Start string
	// Asked is the last request to end the process.
	StopRequest *core.StopRequest
	// Init means that the keeper's child is the tiny init. Its exit status is that of the program
	// below it.
	Init bool
	// PidOne means that the keeper's child is the first process of a pid namespace. Only SIGKILL,
	// signals that it handles, and those of reboot(2) end it.
	PidOne bool
	// PidHolder is the other container that holds the pid namespace of the process; "" for none.
	PidHolder core.ID
	// Refused and Throttled are as in core.Autopsy.
	Refused, Throttled uint64
	// Levels are the cgroups above the process, the container's own first.
	Levels []Level
	// Kills and Local are by how much each level's counters grew during the process's
	// life, as in core.ProcessExit.
	Kills, Local []uint64
	Peak         uint64
	// Victims are the kernel log's out-of-memory kills since the start of the process; nil if the
	// log could not be read.
	Victims []core.OOMVictim
	Tail    []string
	// LostOutput is how many bytes of its output no sink took.
	LostOutput uint64
	// Note replaces the reason of a lost exit: it says how the exit was lost.
	Note string
}

// Level is a cgroup with a limit that may have been reached.
type Level struct {
	Name  string // "container", "sandbox" or a cgroup path
	Path  string // as in the kernel log
	Limit uint64 // bytes; 0 for none
}

// Make makes the record.
func Make(in Input) core.Autopsy {
	a := core.Autopsy{
		Exit: in.Exit, StopRequest: in.StopRequest, Peak: in.Peak, Tail: in.Tail, Start: in.Start, Refused: in.Refused, Throttled: in.Throttled, LostOutput: in.LostOutput,
	}
	if len(in.Levels) > 0 {
		a.Limit = in.Levels[0].Limit
	}
	if !in.Exit.Lost {
		a.OOM = oom(in)
	}
	a.Verdict = verdict(in, a)
	if in.LostOutput > 0 {
		a.Verdict += "; " + LostOutput(in.LostOutput)
	}
	return a
}

// LostOutput says that output is lost; n is greater than 0.
func LostOutput(n uint64) string {
	return bytes(n) + " of its output is lost: no log could take it"
}

// SignalTime is how long after a signal a program may take to end by itself because of
// that signal.
const SignalTime = 10 * time.Second

// Reason returns asked if it may be why a process ended, otherwise nil. A stop always
// may. A signal may if the process ended by it, or by itself soon after; not if it was
// handled long ago, for example to reload a configuration.
func Reason(asked *core.StopRequest, exit core.Exit) *core.StopRequest {
	switch {
	case asked == nil || asked.Stop:
		return asked
	case exit.Signal != 0:
		if exit.Signal != asked.Signal {
			return nil
		}
	case asked.Incidental && exit.Code != 128+asked.Signal:
		return nil
	case exit.Code != 128+asked.Signal && !exit.Lost && exit.At.Sub(asked.At) > SignalTime:
		return nil
	}
	return asked
}

// oom finds out whether the process ran out of memory, at which level, and which process
// was killed.
//
// The counters count every kill below a cgroup, and the kernel log names the victim. A
// main process that exits with 0 although a child was killed, or ends by a SIGTERM long
// after such a kill, was not the victim itself.
func oom(in Input) *core.OOM {
	ours := related(in)
	var kills uint64
	if len(in.Kills) > 0 {
		kills = in.Kills[0]
	}
	kills = max(kills, uint64(len(ours)))
	if kills == 0 {
		return nil
	}
	o := &core.OOM{Kills: kills, Level: levelByCounters(in)}
	if len(ours) == 0 {
		// The log cannot be read, or has lost the lines.
		o.Main = killed(in) && !askedToKill(in)
		return o
	}
	last := ours[len(ours)-1]
	o.Victim, o.Level = last.Pid, levelByPath(in, last.Memcg)
	for _, v := range ours {
		// Pid 0: the log has pids of another pid namespace.
		if v.Pid == in.Pid || (in.Init || v.Pid == 0) && killed(in) && !askedToKill(in) {
			o.Main, o.Victim, o.Level = killed(in), v.Pid, levelByPath(in, v.Memcg)
		}
	}
	return o
}

// related returns the kernel's lines about this process and its container.
func related(in Input) (ours []core.OOMVictim) {
	for _, v := range in.Victims {
		inside := len(in.Levels) > 0 && in.Levels[0].Path != "" &&
			(v.Victim == in.Levels[0].Path || strings.HasPrefix(v.Victim, in.Levels[0].Path+"/"))
		if inside || v.Pid == in.Pid && in.Pid != 0 {
			ours = append(ours, v)
		}
	}
	return ours
}

// killed reports whether an out-of-memory kill can have caused the exit.
func killed(in Input) bool {
	return in.Exit.Signal == int(unix.SIGKILL) || in.Init && in.Exit.Signal == 0 && in.Exit.Code == 128+int(unix.SIGKILL)
}

// askedToKill reports whether a SIGKILL may have been the engine's: every stop ends with
// one when its grace period is over.
func askedToKill(in Input) bool { return in.StopRequest != nil }

func levelByPath(in Input, memcg string) string {
	if memcg == "" || memcg == "/" {
		return "host"
	}
	for _, l := range in.Levels {
		if l.Path == memcg {
			return l.Name
		}
	}
	return memcg
}

// levelByCounters finds the cgroup that reached its limit without the kernel log, which drops lines
// when many processes are killed at once. v2 counts it per level; on v1 it guesses the first level
// with a peak at its limit. It returns "" if there is none.
func levelByCounters(in Input) string {
	for i, n := range in.Local {
		if n > 0 && i < len(in.Levels) {
			return in.Levels[i].Name
		}
	}
	for _, l := range in.Levels {
		if l.Limit > 0 && in.Peak >= l.Limit-l.Limit/16 {
			return l.Name
		}
	}
	if in.Peak > 0 {
		return ""
	}
	for _, l := range in.Levels {
		if l.Limit > 0 {
			return l.Name
		}
	}
	return "host"
}

func verdict(in Input, a core.Autopsy) string {
	e := a.Exit
	switch {
	case in.Start != "":
		return "could not be started: " + in.Start
	case e.Lost && in.Note != "":
		return in.Note
	case e.Lost:
		return AllGone
	case a.OOM != nil && a.OOM.Main:
		return "killed by the kernel: out of memory at " + limitOf(in, a)
	}
	s := end(in, e)
	if in.Refused > 0 {
		s += fmt.Sprintf("; the kernel had refused it %s at its limit of pids", counted(in.Refused, "process or thread", "processes or threads"))
	}
	if in.Throttled > 0 {
		s += "; it was slowed down at its memory.high"
	}
	if a.OOM != nil {
		s += fmt.Sprintf("; before that the kernel killed %s of it, out of memory at %s", counted(a.OOM.Kills, "process", "processes"), limitOf(in, a))
	}
	return s
}

func end(in Input, e core.Exit) string {
	asked := in.StopRequest
	by := ""
	if asked != nil {
		by = "asked for by " + who(asked)
		if asked.Call == core.UnhealthyCall || asked.Call == core.ShutdownCall {
			by = "because " + asked.Call
		}
	}
	switch {
	case e.Signal != 0 && asked != nil && e.Signal == asked.Signal:
		return fmt.Sprintf("ended by %s, %s", signal(e.Signal), by)
	case in.PidOne && reboots[unix.Signal(e.Signal)] != "":
		if asked != nil {
			by = " after " + signal(asked.Signal) + ", " + by
		}
		return fmt.Sprintf(reboots[unix.Signal(e.Signal)], by)
	case e.Signal == int(unix.SIGKILL) && asked != nil:
		return fmt.Sprintf("killed by SIGKILL: it did not end by %s within its grace; %s", signal(asked.Signal), by)
	case faults[unix.Signal(e.Signal)] != "":
		s := fmt.Sprintf("crashed: killed by %s, %s", signal(e.Signal), faults[unix.Signal(e.Signal)])
		if e.Core {
			s += ", with a core dump"
		}
		return s
	case e.Signal == int(unix.SIGKILL) && in.PidHolder != "":
		return fmt.Sprintf("killed by SIGKILL, as the kernel does at the end of container %s, which has its pid namespace", in.PidHolder.Short())
	case e.Signal != 0:
		return fmt.Sprintf("killed by %s, which nobody here has sent", signal(e.Signal))
	case asked != nil:
		return fmt.Sprintf("exited with code %d after %s, %s", e.Code, signal(asked.Signal), by)
	case e.Code == 0:
		return "completed: exit code 0"
	case unix.SignalName(unix.Signal(e.Code-128)) != "":
		// As shells and inits tell of a program below them.
		return fmt.Sprintf("exited with code %d (128 + %s)", e.Code, signal(e.Code-128))
	default:
		return fmt.Sprintf("exited with code %d", e.Code)
	}
}

// reboots are the signals that end the first process of a pid namespace after a reboot(2) there.
var reboots = map[unix.Signal]string{
	unix.SIGHUP: "restarted by itself%s: a program in it has called reboot",
	unix.SIGINT: "switched off by itself%s: a program in it has called reboot to power off or halt",
}

// faults are the signals for a faulty program.
var faults = map[unix.Signal]string{
	unix.SIGSEGV: "it used memory that it does not have",
	unix.SIGBUS:  "it used memory that is not behind its address",
	unix.SIGILL:  "it came to an instruction that this processor does not have",
	unix.SIGFPE:  "it made an error of arithmetic, such as a division by zero",
	unix.SIGABRT: "it gave up by itself (abort)",
	unix.SIGTRAP: "it came to a breakpoint or an assertion",
	unix.SIGSYS:  "it made a system call that its seccomp filter forbids",
}

func who(a *core.StopRequest) string {
	s := string(a.Owner)
	if a.Call != "" {
		s += " " + a.Call
	}
	if a.User != "" {
		s += " (" + a.User + ")"
	}
	return s
}

func counted(n uint64, one, many string) string {
	if n == 1 {
		return "a " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func limitOf(in Input, a core.Autopsy) string {
	for _, l := range in.Levels {
		if l.Name == a.OOM.Level {
			s := "the limit of the " + l.Name
			if l.Limit > 0 {
				s += " (" + bytes(l.Limit) + ")"
			}
			return s
		}
	}
	switch a.OOM.Level {
	case "host":
		return "the whole host"
	case "":
		return "a limit above it or that of the whole host: the kernel's log does not tell"
	}
	return "the limit of " + a.OOM.Level
}

func bytes(n uint64) string {
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.size)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func signal(n int) string {
	if s := unix.SignalName(unix.Signal(n)); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}

// The texts of Input.Note for lost exits. They name the dead processes as far as known.
const (
	AllGone = "lost: agent, keeper and nest were all gone, and no readable record says how it ended"
	// AllGoneKilled is for a process with remnants that still ran when the agent was back.
	AllGoneKilled = "lost: agent, keeper and nest were all gone while it ran; what still ran of it was killed when the agent was back"
	// PairGone and PairGoneKilled are for an agent that lived all the time.
	PairGone       = "lost: keeper and nest died together, and the agent had no copies of what they held of it; nobody knows how it ended"
	PairGoneKilled = "lost: keeper and nest died together while it ran, and the agent had no copies of what they held of it; what still ran of it was killed"
	// Orphan is for a process that was taken over after the death of its parents.
	Orphan = "lost: keeper and nest had died before it ended, and its exit status could not be read: kernels older than 6.15 give it to the parent alone"
)

// Boot returns the record of a process that was running when the node went down.
func Boot(at time.Time) core.Autopsy {
	return Make(Input{Exit: core.Exit{Lost: true, At: at}, Note: "node restarted: it was running when the node went down"})
}
