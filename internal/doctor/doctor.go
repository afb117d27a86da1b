// Package doctor checks a machine without a running agent: its kernel, devices, capabilities, programs and file systems.
// Board keeps the findings of a running agent, counts them for the metrics, and returns changes.
//
// It knows nothing of containers. The agent adds the findings that need its parts. Start at Offline.
package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/network/nft"
)

// Offline returns the findings that need no agent: before its first start, or after one that failed.
func Offline(cfg config.Config) []control.Finding {
	list := []control.Finding{Kernel(), Capabilities(), cgroups(), nftables(), State(existing(cfg.Agent.State)), Devices(), KernelLog(), keeper()}
	return append(list, Space(cfg.Agent.Root, cfg.Agent.State)...)
}

func cgroups() control.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return Fail("cgroups", "mount the cgroups of this machine at /sys/fs/cgroup", "/sys/fs/cgroup: %v", err)
	}
	switch st.Type {
	case unix.CGROUP2_SUPER_MAGIC:
		return OK("cgroups", "v2")
	case unix.TMPFS_MAGIC, unix.CGROUP_SUPER_MAGIC:
		return OK("cgroups", "v1 or hybrid")
	}
	return Fail("cgroups", "mount the cgroups of this machine at /sys/fs/cgroup", "/sys/fs/cgroup has no cgroups")
}

func nftables() control.Finding {
	if err := nft.Able(); err != nil {
		return Warn("nftables", "load the module nf_tables (modprobe nf_tables): the built-in network needs it", "%v", err)
	}
	return OK("nftables", "works")
}

// keeper looks for the program beside this one, where the agent finds it first.
func keeper() control.Finding {
	self, err := os.Executable()
	if err != nil {
		return Warn("programs", "", "%v", err)
	}
	path := filepath.Join(filepath.Dir(self), "longshore-keeper")
	if err := unix.Access(path, unix.X_OK); err != nil {
		return Fail("programs", "install the program longshore-keeper of the same version beside longshore", "%s: %v", path, err)
	}
	return OK("programs", "%s and %s", self, path)
}

// existing returns a directory, or its nearest parent that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// The least that a file system must have left before a finding warns.
const (
	fewBytes  = 64 << 20
	fewInodes = 1024
)

// Space checks the free bytes and inodes for the agent's files. For a directory that does not exist it checks the nearest
// parent.
func Space(root, state string) []control.Finding {
	return []control.Finding{space("disk root", root), space("disk state", state)}
}

func space(name, dir string) control.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(existing(dir), &st); err != nil {
		return Fail(name, "", "%s: %v", dir, err)
	}
	free, size := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	const hint = "`longshore system prune` removes what no container uses; move other programs' files away, or enlarge the file system"
	var full, few []string
	switch {
	case size == 0: // the file system has no limit
	case free == 0:
		full = append(full, "no byte")
	case free < min(fewBytes, size/20):
		few = append(few, fmt.Sprintf("%d KB of %d", free>>10, size>>10))
	}
	switch {
	case st.Files == 0: // the file system makes inodes as it needs them
	case st.Ffree == 0:
		full = append(full, "no inode")
	case st.Ffree < min(fewInodes, st.Files/20):
		few = append(few, fmt.Sprintf("%d inodes of %d", st.Ffree, st.Files))
	}
	switch {
	case len(full) > 0:
		return Fail(name, hint, "%s is full: %s is left", dir, strings.Join(full, " and "))
	case len(few) > 0:
		return Warn(name, hint, "%s is almost full: %s are left", dir, strings.Join(few, " and "))
	}
	return OK(name, "%s has %d MB and %d inodes left", dir, free>>20, st.Ffree)
}

// Board has the findings of a running agent. Its zero value has none. It is safe for concurrent use.
type Board struct {
	mu   sync.Mutex // guards list
	list []control.Finding
}

// Update replaces the findings, and returns those with a new status. A new finding counts unless it is OK.
func (b *Board) Update(list []control.Finding) (changed []control.Finding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range list {
		if i := b.find(f.Name); i < 0 && f.Status != control.FindingOK || i >= 0 && b.list[i].Status != f.Status {
			changed = append(changed, f)
		}
	}
	b.list = slices.Clone(list)
	return changed
}

// Put replaces one finding of the list, and returns it if its status is new. It does nothing before the first Update.
func (b *Board) Put(f control.Finding) (changed []control.Finding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(f.Name)
	if i < 0 {
		return nil
	}
	if b.list[i].Status != f.Status {
		changed = append(changed, f)
	}
	b.list[i] = f
	return changed
}

// find returns the index of a finding, or -1.
//
// Preconditions: mu is held.
func (b *Board) find(name string) int {
	return slices.IndexFunc(b.list, func(f control.Finding) bool { return f.Name == name })
}

var findingsDesc = prometheus.NewDesc("longshore_findings", "Findings of doctor that are watched, by name and status: always 1.", []string{"name", "status"}, nil) //nolint:gochecknoglobals // a constant

// Describe implements prometheus.Collector.
func (b *Board) Describe(ch chan<- *prometheus.Desc) { ch <- findingsDesc }

// Collect implements prometheus.Collector.
func (b *Board) Collect(ch chan<- prometheus.Metric) {
	b.mu.Lock()
	list := b.list
	b.mu.Unlock()
	seen := map[string]bool{}
	for _, f := range list {
		if seen[f.Name] {
			continue // the registry takes each name and status once
		}
		seen[f.Name] = true
		ch <- prometheus.MustNewConstMetric(findingsDesc, prometheus.GaugeValue, 1, f.Name, string(f.Status))
	}
}
