package hostinfo

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Load is the use of the machine at one time. Values that the kernel does not report are zero, and their OK is false.
type Load struct {
	Busy, Total uint64 // of all processors since the boot, in the kernel's ticks
	CPUs        int

	MemoryTotal, MemoryAvailable uint64 // bytes
	SwapTotal, SwapFree          uint64
	MemoryOK                     bool

	Average   float64 // of a minute
	AverageOK bool

	Pressure []Pressure
	Disks    []Disk
}

// Pressure has the percentages of the last ten seconds with processes waiting for a resource.
type Pressure struct {
	Resource   string
	Some, Full float64
}

// Disk is a file system.
type Disk struct {
	Paths              []string
	Total, Free        uint64 // bytes; Free is for root
	Inodes, FreeInodes uint64
}

// ReadLoad reads the use of the machine, and of the file systems of paths.
func ReadLoad(paths ...string) Load { return readLoad("/proc", paths) }

func readLoad(proc string, paths []string) Load {
	var l Load
	l.Busy, l.Total, l.CPUs = cpuTimes(read1(proc, "stat"))
	mem := memoryOf(read1(proc, "meminfo"))
	l.MemoryTotal, l.MemoryAvailable = mem["MemTotal"], mem["MemAvailable"]
	l.SwapTotal, l.SwapFree = mem["SwapTotal"], mem["SwapFree"]
	l.MemoryOK = l.MemoryTotal > 0
	if f := bytes.Fields(read1(proc, "loadavg")); len(f) > 0 {
		var err error
		l.Average, err = strconv.ParseFloat(string(f[0]), 64)
		l.AverageOK = err == nil
	}
	for _, r := range []string{"cpu", "memory", "io"} {
		if p, ok := pressureOf(r, read1(proc, "pressure/"+r)); ok {
			l.Pressure = append(l.Pressure, p)
		}
	}
	l.Disks = disksOf(paths)
	return l
}

// read1 reads a file below proc; it is empty if it cannot be read.
func read1(proc, name string) []byte {
	data, _ := os.ReadFile(filepath.Join(proc, name))
	return data
}

// cpuTimes reads the first line of /proc/stat, and counts the lines of single processors.
func cpuTimes(stat []byte) (busy, total uint64, cpus int) {
	for line := range bytes.Lines(stat) {
		f := strings.Fields(string(line))
		if len(f) < 5 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		if f[0] != "cpu" {
			cpus++
			continue
		}
		// user nice system idle iowait irq softirq steal; the guest's time is part of user's.
		for i, s := range f[1:min(len(f), 9)] {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return 0, 0, 0
			}
			if total += n; i != 3 && i != 4 {
				busy += n
			}
		}
	}
	return busy, total, cpus
}

// memoryOf reads /proc/meminfo, in bytes.
func memoryOf(text []byte) map[string]uint64 {
	all := map[string]uint64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			all[name] = n << 10
		}
	}
	return all
}

// pressureOf reads a file of /proc/pressure.
func pressureOf(resource string, text []byte) (p Pressure, ok bool) {
	p.Resource = resource
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 2 {
			continue
		}
		avg, found := strings.CutPrefix(f[1], "avg10=")
		n, err := strconv.ParseFloat(avg, 64)
		if !found || err != nil {
			continue
		}
		switch f[0] {
		case "some":
			p.Some, ok = n, true
		case "full":
			p.Full = n
		}
	}
	return p, ok
}

// disksOf returns the file systems of directories, each once.
func disksOf(paths []string) (list []Disk) {
	at := map[uint64]int{}
	for _, path := range paths {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if unix.Stat(path, &st) != nil || unix.Statfs(path, &fs) != nil {
			continue
		}
		if i, ok := at[st.Dev]; ok {
			list[i].Paths = append(list[i].Paths, path)
			continue
		}
		at[st.Dev] = len(list)
		size := uint64(fs.Bsize)
		list = append(list, Disk{Paths: []string{path}, Total: fs.Blocks * size, Free: fs.Bfree * size, Inodes: fs.Files, FreeInodes: fs.Ffree})
	}
	return list
}
