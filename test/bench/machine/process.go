package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is one that runs in this pid namespace.
type process struct {
	pid  int
	args string // separated by NUL
}

func (p process) name() string {
	argv0, _, _ := strings.Cut(p.args, "\x00")
	return filepath.Base(argv0)
}

func (p process) file(name string) string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), name)) // none when it has just ended
	return string(b)
}

// processes are all but kernel threads and zombies, which have no arguments.
func processes() []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var all []process
	for _, d := range dirs {
		p := process{}
		p.pid, _ = strconv.Atoi(filepath.Base(d))
		if p.args = p.file("cmdline"); p.args != "" {
			all = append(all, p)
		}
	}
	return all
}

// ProgramCPU is the CPU time that the running processes of a program have used,
// by its file's name; those that they waited for are not counted.
func ProgramCPU(name string) (total time.Duration) {
	for _, p := range processes() {
		if p.name() != name {
			continue
		}
		stat := p.file("stat")
		f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		for _, i := range []int{11, 12} { // utime, stime
			if i < len(f) {
				ticks, _ := strconv.ParseInt(f[i], 10, 64)
				total += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
	}
	return total
}

// ProcessCPU is the CPU time that the threads of a running process have used, but for
// those that have ended.
func ProcessCPU(pid int) (total time.Duration) {
	files, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/[0-9]*/schedstat"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		used, _, _ := strings.Cut(string(b), " ")
		n, _ := strconv.ParseInt(used, 10, 64)
		total += time.Duration(n)
	}
	return total
}

// Memory is the proportional set size of the processes that count, in bytes, by
// their programs' names; this one and its parent do not.
func Memory(counts func(name, args string) bool) map[string]int64 { return memory(counts, "Pss:") }

// Private is Memory for pages of each process alone that the kernel cannot read again from a file.
func Private(counts func(name, args string) bool) map[string]int64 {
	return memory(counts, "Private_Dirty:")
}

func memory(counts func(name, args string) bool, field string) map[string]int64 {
	sums := map[string]int64{}
	for _, p := range processes() {
		if p.pid == os.Getpid() || p.pid == os.Getppid() || !counts(p.name(), p.args) {
			continue
		}
		for line := range strings.Lines(p.file("smaps_rollup")) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == field {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				sums[p.name()] += kb * 1024
			}
		}
	}
	return sums
}

// But has Memory count all that does not begin with one of these arguments, which
// are separated by NUL.
func But(programs ...string) func(name, args string) bool {
	return func(_, args string) bool {
		for _, p := range programs {
			if strings.HasPrefix(args, p) {
				return false
			}
		}
		return true
	}
}

// ProcessMemory is the resident memory of a process in bytes.
func ProcessMemory(pid int) (int64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
