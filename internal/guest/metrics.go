package guest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Metrics returns values of this process and of the machine, in Prometheus' text form with Kata's
// own agent's names. Values that the kernel does not report are left out.
func (m *Machine) Metrics() string {
	w := &metricWriter{proc: m.procfs}
	w.family("kata_agent_scrape_count", "counter", "How often the metrics were asked for")
	w.value(strconv.FormatUint(m.scrapes.Add(1), 10))
	w.agent()
	w.load()
	w.processors()
	w.pairs("kata_guest_vm_stat", "Virtual memory of the guest", "vmstat", func(name string) string { return name })
	w.links()
	w.disks()
	w.pairs("kata_guest_meminfo", "Memory of the guest, in bytes", "meminfo", memoryItem)
	w.fileSystems()
	return w.b.String()
}

// metricWriter writes metrics, family by family.
type metricWriter struct {
	b    bytes.Buffer
	proc string
	name string // of the family
}

func (w *metricWriter) family(name, kind, help string) {
	w.name = name
	fmt.Fprintf(&w.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// value writes one value; labels are names and values in turn.
func (w *metricWriter) value(text string, labels ...string) {
	w.b.WriteString(w.name)
	for i := 0; i+1 < len(labels); i += 2 {
		w.b.WriteByte("{,"[min(i, 1)])
		w.b.WriteString(labels[i] + `="` + labelEscape.Replace(labels[i+1]) + `"`)
	}
	if len(labels) > 0 {
		w.b.WriteByte('}')
	}
	w.b.WriteString(" " + text + "\n")
}

var labelEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`) //nolint:gochecknoglobals // a table

func (w *metricWriter) read(name string) string {
	b, err := os.ReadFile(filepath.Join(w.proc, name))
	if err != nil {
		return ""
	}
	return string(b)
}

// items writes values under the names of the same place, without those that are missing.
func (w *metricWriter) items(names, values []string, labels ...string) {
	for i, name := range names {
		if i < len(values) && name != "" {
			w.value(values[i], append(slices.Clone(labels), "item", name)...)
		}
	}
}

// pairs writes a file of lines "name value [kB]".
func (w *metricWriter) pairs(family, help, file string, item func(string) string) {
	text := w.read(file)
	if text == "" {
		return
	}
	w.family(family, "gauge", help)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 {
			w.value(inBytes(f[1:]), "item", item(strings.TrimSuffix(f[0], ":")))
		}
	}
}

// inBytes returns a value with its unit in bytes.
func inBytes(f []string) string {
	if n, err := strconv.ParseUint(f[0], 10, 54); err == nil && len(f) == 2 && f[1] == "kB" {
		return strconv.FormatUint(n*1024, 10)
	}
	return f[0]
}

// memoryItem is the name of a line of meminfo in words that '_' divides.
func memoryItem(name string) string {
	if n, ok := strings.CutPrefix(name, "DirectMap"); ok {
		return "direct_map_" + n
	}
	name = strings.NewReplacer("HugePages", "Hugepages", "(", "_", ")", "", "Percpu", "PerCpu").Replace(name)
	var out []rune
	in := []rune(name)
	for i, r := range in {
		next := i+1 < len(in) && unicode.IsLower(in[i+1])
		if unicode.IsUpper(r) && i > 0 && in[i-1] != '_' && (unicode.IsLower(in[i-1]) || next) {
			out = append(out, '_')
		}
		out = append(out, unicode.ToLower(r))
	}
	return string(out)
}

// afterName are the fields of a process's stat file behind its name, which may have
// blanks: the first is the state, the third field of the file.
func afterName(stat string) []string {
	return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
}

func (w *metricWriter) agent() {
	stat := afterName(w.read("self/stat"))
	at := func(field int) string {
		if field -= 3; field < len(stat) {
			return stat[field]
		}
		return "0"
	}
	number := func(s string) uint64 {
		n, _ := strconv.ParseUint(s, 10, 64) // 0 for unreported values
		return n
	}
	w.family("kata_agent_threads", "gauge", "Threads of the agent")
	w.value(at(20))
	w.family("kata_agent_total_time", "gauge", "Processor time of the agent, in seconds")
	w.value(strconv.FormatUint((number(at(14))+number(at(15)))/ticks, 10))
	w.family("kata_agent_total_vm", "gauge", "Virtual memory of the agent, in bytes")
	w.value(at(23))
	w.family("kata_agent_total_rss", "gauge", "Memory of the agent, in bytes")
	w.value(strconv.FormatUint(number(at(24))*uint64(os.Getpagesize()), 10))
	w.family("kata_agent_proc_stat", "gauge", "Processor time of the agent, in the kernel's ticks")
	w.items([]string{"utime", "stime", "cutime", "cstime"}, []string{at(14), at(15), at(16), at(17)})
	w.family("kata_agent_proc_status", "gauge", "Memory of the agent by kinds, in kB, and its switches")
	for line := range strings.Lines(w.read("self/status")) {
		if f := strings.Fields(line); len(f) >= 2 {
			name := strings.ToLower(strings.TrimSuffix(f[0], ":"))
			if strings.HasPrefix(name, "vm") || strings.HasPrefix(name, "rss") || name == "hugetlbpages" || strings.HasSuffix(name, "ctxt_switches") {
				w.value(f[1], "item", name)
			}
		}
	}
	w.family("kata_agent_io_stat", "gauge", "Input and output of the agent")
	for line := range strings.Lines(w.read("self/io")) {
		if f := strings.Fields(line); len(f) == 2 {
			w.value(f[1], "item", strings.TrimSuffix(f[0], ":"))
		}
	}
}

// ticks is how many ticks a second has in the kernel's files.
const ticks = 100

func (w *metricWriter) load() {
	f := strings.Fields(w.read("loadavg"))
	if len(f) < 4 {
		return
	}
	w.family("kata_guest_load", "gauge", "Load of the guest")
	w.items([]string{"load1", "load5", "load15"}, f)
	cur, all, _ := strings.Cut(f[3], "/")
	w.family("kata_guest_tasks", "gauge", "Threads of the guest")
	w.items([]string{"cur", "max"}, []string{cur, all})
}

func (w *metricWriter) processors() {
	w.family("kata_guest_cpu_time", "gauge", "Processor time of the guest, in the kernel's ticks")
	for line := range strings.Lines(w.read("stat")) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		name, ok := strings.CutPrefix(f[0], "cpu")
		if !ok {
			continue
		}
		if name == "" {
			name = "total"
		}
		w.items([]string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"}, f[1:], "cpu", name)
	}
}

func (w *metricWriter) links() {
	w.family("kata_guest_netdev_stat", "gauge", "Values of the guest's links")
	for line := range strings.Lines(w.read("thread-self/net/dev")) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		w.items([]string{
			"recv_bytes", "recv_packets", "recv_errs", "recv_drop", "recv_fifo", "recv_frame", "recv_compressed", "recv_multicast",
			"sent_bytes", "sent_packets", "sent_errs", "sent_drop", "sent_fifo", "sent_colls", "sent_carrier", "sent_compressed",
		}, strings.Fields(rest), "interface", strings.TrimSpace(name))
	}
}

func (w *metricWriter) disks() {
	w.family("kata_guest_diskstat", "gauge", "Values of the guest's disks")
	for line := range strings.Lines(w.read("diskstats")) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		w.items([]string{
			"reads", "merged", "sectors_read", "time_reading", "writes", "writes_merged", "sectors_written", "time_writing", "in_progress", "time_in_progress",
			"weighted_time_in_progress", "discards", "discards_merged", "sectors_discarded", "time_discarding", "flushes", "time_flushing",
		}, f[3:], "disk", f[2])
	}
}

// fileSystems tells of those that are on disks, as the reference does.
func (w *metricWriter) fileSystems() {
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Source, "/dev/"), false
	})
	if err != nil {
		return
	}
	type usage struct {
		at, device string
		st         unix.Statfs_t
	}
	var all []usage
	for _, i := range mounts {
		u := usage{at: i.Mountpoint, device: i.Source}
		if unix.Statfs(i.Mountpoint, &u.st) == nil {
			all = append(all, u)
		}
	}
	write := func(name, help string, values func(*unix.Statfs_t) [4]uint64) {
		w.family(name, "gauge", help)
		for i := range all {
			n := values(&all[i].st)
			for k, item := range []string{"total", "free", "available", "used"} {
				w.value(strconv.FormatUint(n[k], 10), "mount", all[i].at, "device", all[i].device, "item", item)
			}
		}
	}
	write("kata_guest_filesystem_bytes", "Bytes of the guest's file systems", func(st *unix.Statfs_t) [4]uint64 {
		block := uint64(st.Bsize)
		return [4]uint64{st.Blocks * block, st.Bfree * block, st.Bavail * block, (st.Blocks - st.Bfree) * block}
	})
	write("kata_guest_filesystem_inodes", "Inodes of the guest's file systems", func(st *unix.Statfs_t) [4]uint64 {
		return [4]uint64{st.Files, st.Ffree, st.Ffree, st.Files - st.Ffree}
	})
}
