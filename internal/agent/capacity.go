package agent

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/control"
)

// wantedFiles is the least limit of open files that the agent sets for itself and for its keeper, which has several for
// each container.
const wantedFiles = 1 << 16

// raiseFiles raises the limit of open files to wantedFiles, or as near to it as allowed. Service managers and shells
// start programs with 1,024. A higher limit stays as it is, because containers inherit it.
func raiseFiles() (before, after uint64) {
	var now unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &now) != nil {
		return 0, 0
	}
	before = now.Cur
	most := min(uint64(wantedFiles), number("/proc/sys/fs/nr_open"))
	for _, try := range []unix.Rlimit{{Cur: max(most, now.Cur), Max: max(most, now.Max)}, {Cur: now.Max, Max: now.Max}} {
		if now.Cur >= most || unix.Setrlimit(unix.RLIMIT_NOFILE, &try) == nil {
			break
		}
	}
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &now) != nil {
		return before, before
	}
	return before, now.Cur
}

// number reads a number from a file. It returns MaxUint64 if the file has none or contains "max".
func number(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return math.MaxUint64
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

// The least resources of a container: a keeper's descriptors for its pipes and its pidfd, processes
// of its own and of the kernel's accounting, and files in the state directory. They were counted on
// a node with many containers, and rounded up.
const (
	filesEach     = 8
	pidsEach      = 4
	watchersEach  = 1
	conntrackEach = 64
	keysEach      = 1
	stateEach     = 96 << 10
)

// fewContainers is kubelet's default limit of pods on a node.
const fewContainers = 110

// headroom is the number of further containers that one of the node's limits allows.
type headroom struct {
	limit      string
	containers uint64
	hint       string
}

// keeperPid returns the pid of the node's keeper, 0 if it does not answer.
func keeperPid(ctx context.Context, n *node) int {
	s, err := n.keeper.Status(ctx)
	if err != nil {
		return 0
	}
	return s.KeeperPid
}

// capacityFinding reports how many more containers the node's limits allow, and the first limit to be reached. keeper
// is the keeper's pid, or 0.
func capacityFinding(n *node, keeper int) control.Finding {
	var headrooms []headroom
	add := func(limit string, has, used, each uint64, hint string) {
		if has == math.MaxUint64 {
			return // there is no such limit here
		}
		headrooms = append(headrooms, headroom{limit, (max(has, used) - used) / each, hint})
	}
	if keeper > 0 {
		var l unix.Rlimit
		if unix.Prlimit(keeper, unix.RLIMIT_NOFILE, nil, &l) == nil {
			add("descriptors", l.Cur, entries(fmt.Sprintf("/proc/%d/fd", keeper)), filesEach, "raise LimitNOFILE of the agent's unit, then end its keeper when no container runs")
		}
	}
	add("pids", min(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max"), ownPids()), entries("/proc/self/task"), pidsEach, "raise kernel.pid_max, kernel.threads-max and TasksMax of the agent's slice")
	add("inotify", number("/proc/sys/fs/inotify/max_user_instances"), 0, watchersEach, "raise fs.inotify.max_user_instances: programs in containers that watch files share it")
	used := number("/proc/sys/net/netfilter/nf_conntrack_count")
	if used != math.MaxUint64 {
		add("conntrack", number("/proc/sys/net/netfilter/nf_conntrack_max"), used, conntrackEach, "raise net.netfilter.nf_conntrack_max")
	}
	add("keyrings", number("/proc/sys/kernel/keys/root_maxkeys"), 0, keysEach, "raise kernel.keys.root_maxkeys")
	var st unix.Statfs_t
	if unix.Statfs(n.cfg.Agent.State, &st) == nil {
		add(n.cfg.Agent.State, st.Bavail*uint64(st.Bsize), 0, stateEach, "make the file system of "+n.cfg.Agent.State+" larger")
		if st.Files > 0 {
			add(n.cfg.Agent.State+"'s inodes", st.Ffree, 0, 32, "give the file system of "+n.cfg.Agent.State+" more inodes")
		}
	}
	return roomFinding(headrooms)
}

func roomFinding(headrooms []headroom) control.Finding {
	least := headroom{containers: math.MaxUint64}
	var all []string
	for _, r := range headrooms {
		if r.containers < least.containers {
			least = r
		}
		all = append(all, fmt.Sprintf("%s %d", r.limit, r.containers))
	}
	switch {
	case len(headrooms) == 0:
		return ok("room", "this node has no known limit")
	case least.containers < fewContainers:
		return warn("room", least.hint, "for about %d more containers: %s", least.containers, strings.Join(all, ", "))
	}
	return ok("room", "for about %d more containers: %s", least.containers, strings.Join(all, ", "))
}

func entries(dir string) uint64 {
	f, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // it was only read
	names, _ := f.Readdirnames(-1)
	return uint64(len(names))
}

// ownPids returns the lowest limit of processes of the cgroups above the agent, on v2.
func ownPids() uint64 {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return math.MaxUint64
	}
	least := uint64(math.MaxUint64)
	for line := range strings.Lines(string(b)) {
		rel, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ; found && rel != "/" && rel != "."; rel = filepath.Dir(rel) {
			least = min(least, number(filepath.Join("/sys/fs/cgroup", rel, "pids.max")))
		}
	}
	return least
}
