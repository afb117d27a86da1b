// Package stats answers for the usage of containers in Docker's API: GET /containers/{id}/stats, and GET /containers/{id}/top,
// which lists processes by the node's ps. Start at Server.
package stats

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/hostinfo"
	"github.com/longshore/longshore/internal/invalid"
	kernel "github.com/longshore/longshore/internal/stats"
)

// Server has the usage of one owner's containers. All fields but HidesEnv are required.
type Server struct {
	Engine *engine.Client
	// Container finds a container by its id, its name or the beginning of its id.
	Container func(ctx context.Context, ref string) (core.Container, error)
	// Publish adds an event.
	Publish func(typ, action, id string, attributes map[string]string)
	// HidesEnv reports whether a client must not see environments, which ps can print; nil is no client.
	HidesEnv func(ctx context.Context) bool
}

// Routes adds the handlers.
func (s *Server) Routes(m *dockerhttp.Mux) {
	m.Handle("GET", "/containers/{id...}/stats", s.stats)
	m.Handle("GET", "/containers/{id...}/top", s.top)
}

// interval is the time between two samples.
const interval = time.Second

// stats sends the usage of a container every second, or once. Clients compute its CPU from two samples, so one answer has two
// unless the client asks for one.
func (s *Server) stats(w http.ResponseWriter, r *dockerhttp.Request) error {
	stream, once := r.BoolOr("stream", true), r.Bool("one-shot") && !r.API.Before("1.41")
	if stream && once {
		return invalid.Plainf("cannot have stream=true and one-shot=true")
	}
	ctx := r.Context()
	c, err := s.Container(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	doc, err := s.sample(ctx, c.ID)
	if err != nil {
		return err
	}
	out := dockerhttp.NewStream(w)
	if stream || once || doc.Read.IsZero() {
		if err := out.Send(doc); err != nil || !stream {
			return err
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next, err := s.sample(ctx, c.ID)
		switch {
		case errdefs.IsNotFound(err) && out.Began():
			return nil // it was removed
		case err != nil && !out.Began():
			return err
		case err != nil:
			out.Fail(err)
			return nil
		}
		if !next.Read.IsZero() {
			next.PreRead, next.PreCPUStats = doc.Read, doc.CPUStats
		}
		doc = next
		if err := out.Send(doc); err != nil || !stream {
			return err
		}
	}
}

// sample returns the present usage of a container, with its name and id alone if it does not run. It reads the time of all CPUs
// right after the container's, because clients divide the differences.
func (s *Server) sample(ctx context.Context, id core.ID) (dockertypes.Stats, error) {
	c, err := s.Engine.Container(ctx, id)
	if err != nil {
		return dockertypes.Stats{}, err
	}
	doc := dockertypes.Stats{Name: "/" + c.Name(), ID: string(id)}
	if !c.State.Live() {
		return doc, nil
	}
	st, err := s.Engine.Stats.OfContainer(ctx, &c, core.StatsUsage|core.StatsDetail)
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return doc, nil // it has ended meanwhile
	}
	if err != nil {
		return doc, err
	}
	raw, err := kernel.File("/proc/stat")
	if err != nil {
		return doc, err
	}
	system, cpus, err := cpuTime(raw)
	if err != nil {
		return doc, err
	}
	doc.Read = st.At
	fill(&doc, &st, s.Engine.Stats.Cgroups.Mode() == core.CgroupV2)
	doc.CPUStats.SystemUsage, doc.CPUStats.OnlineCPUs = system, cpus
	if total := hostinfo.Memory(); doc.MemoryStats.Limit == 0 || doc.MemoryStats.Limit > total {
		doc.MemoryStats.Limit = total
	}
	doc.Networks, err = s.networks(ctx, &c)
	return doc, err
}

// networks returns the traffic of a container's interfaces, those of another container if it has that one's network; nil if it
// has the host's.
func (s *Server) networks(ctx context.Context, c *core.Container) (map[string]dockertypes.NetworkStats, error) {
	sb, err := s.Engine.Sandbox(ctx, c.Sandbox)
	if err == nil && sb.Config.Namespaces.Net.Mode == core.Joined {
		sb, err = s.Engine.Sandbox(ctx, sb.Config.Namespaces.Net.Holder)
	}
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := s.Engine.Stats.Networks(ctx, []*core.Sandbox{&sb})
	if err != nil {
		return nil, fmt.Errorf("stats of the network of container %s: %w", c.ID, err)
	}
	list := map[string]dockertypes.NetworkStats{}
	for _, n := range all[sb.ID] {
		list[n.Name] = dockertypes.NetworkStats{
			RxBytes: n.RxBytes, RxPackets: n.RxPackets, RxErrors: n.RxErrors, RxDropped: n.RxDropped,
			TxBytes: n.TxBytes, TxPackets: n.TxPackets, TxErrors: n.TxErrors, TxDropped: n.TxDropped,
		}
	}
	return list, nil
}

// fill translates the numbers of a cgroup. Those that v2 does not have are left out, as in dockerd.
func fill(doc *dockertypes.Stats, st *core.Stats, v2 bool) {
	doc.PidsStats = dockertypes.PidsStats{Current: st.Pids.Current.N}
	if st.Pids.Limit.OK {
		doc.PidsStats.Limit = st.Pids.Limit.N
	}
	doc.CPUStats = dockertypes.CPUStats{
		CPUUsage:       dockertypes.CPUUsage{TotalUsage: st.CPU.Usage.N, UsageInKernelmode: st.CPU.System.N, UsageInUsermode: st.CPU.User.N},
		ThrottlingData: dockertypes.ThrottlingData{Periods: st.CPU.Periods.N, ThrottledPeriods: st.CPU.Throttled.N, ThrottledTime: st.CPU.ThrottledNS.N},
	}
	doc.MemoryStats = dockertypes.MemoryStats{Usage: st.Memory.Usage.N, Stats: st.Memory.Raw, Failcnt: st.Memory.FailCount.N}
	if st.Memory.Limit.OK {
		doc.MemoryStats.Limit = st.Memory.Limit.N
	}
	read, write := "read", "write"
	if !v2 {
		read, write = "Read", "Write"
		doc.CPUStats.CPUUsage.PercpuUsage = st.CPU.PerCPU
		doc.MemoryStats.MaxUsage = st.Memory.Peak.N
		none := []dockertypes.BlkioEntry{}
		doc.BlkioStats = dockertypes.BlkioStats{
			IoServiceBytesRecursive: none, IoServicedRecursive: none, IoQueuedRecursive: none, IoServiceTimeRecursive: none,
			IoWaitTimeRecursive: none, IoMergedRecursive: none, IoTimeRecursive: none, SectorsRecursive: none,
		}
	}
	for _, d := range st.IO {
		entry := func(op string, n uint64) dockertypes.BlkioEntry {
			return dockertypes.BlkioEntry{Major: d.Major, Minor: d.Minor, Op: op, Value: n}
		}
		b := &doc.BlkioStats
		b.IoServiceBytesRecursive = append(b.IoServiceBytesRecursive, entry(read, d.ReadBytes), entry(write, d.WriteBytes))
		if !v2 {
			b.IoServicedRecursive = append(b.IoServicedRecursive, entry(read, d.Reads), entry(write, d.Writes))
		}
	}
}

// cpuTime returns the time of all CPUs, in nanoseconds, and their number, from the content of /proc/stat.
func cpuTime(stat []byte) (total uint64, cpus uint32, err error) {
	const tick = 1e9 / 100 // USER_HZ is 100 on all processors that the agent runs on
	for line := range bytes.Lines(stat) {
		f := bytes.Fields(line)
		switch {
		case len(f) == 0 || !bytes.HasPrefix(f[0], []byte("cpu")):
		case len(f[0]) > len("cpu"):
			cpus++
		case len(f) < 8:
			return 0, 0, fmt.Errorf("read /proc/stat: the line of all CPUs has %d fields, at least 8 are expected", len(f))
		default:
			for _, n := range f[1:8] { // user to softirq
				ticks, err := strconv.ParseUint(string(n), 10, 64)
				if err != nil {
					return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
				}
				total += ticks * tick
			}
		}
	}
	return total, cpus, nil
}
