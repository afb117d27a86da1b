package names

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const programName = "longshore-names"

// directory has the socket, the log and the pid of the process.
type directory string

func (d directory) socket() string  { return filepath.Join(string(d), "socket") }
func (d directory) pidFile() string { return filepath.Join(string(d), "pid") }
func (d directory) log() string     { return filepath.Join(string(d), "log") }

// remove removes the files of a process that has ended.
func (d directory) remove() error { return os.RemoveAll(string(d)) }

// process returns the process that was started last, by this agent or an earlier one; nil when it
// has ended.
func (d directory) process() *os.Process {
	b, err := os.ReadFile(d.pidFile())
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil || pid <= 1 {
		return nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	// The pidfd keeps the pid from naming another process after this check.
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !strings.HasPrefix(string(line), programName+"\x00") {
		_ = p.Release()
		return nil
	}
	return p
}
