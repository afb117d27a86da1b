package agent

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
)

// registerMeters registers the collectors that need the node's configuration.
func registerMeters(n *node) error {
	c := n.cfg
	certificates := map[string]string{}
	if c.Metrics.Listen != "" {
		certificates["metrics"] = c.Metrics.Cert
	}
	if c.Face.Docker.Enabled && c.Face.Docker.TCP != "" {
		certificates["docker"] = c.Face.Docker.TLSCert
	}
	if c.Face.Mesos.Enabled && c.Face.Mesos.Listen != "" && c.Face.Mesos.Cert != "" {
		certificates["mesos"] = c.Face.Mesos.Cert
	}
	if c.UI.Listen != "" && c.UI.Cert != "" {
		certificates["ui"] = c.UI.Cert
	}
	return errors.Join(
		n.metrics.Register(newDisks(map[string]string{"root": c.Agent.Root, "state": c.Agent.State})),
		n.metrics.Register(certificateAges{certificates, prometheus.NewDesc("longshore_certificate_not_after_seconds", "When the certificate of a listener expires, in seconds since 1970.", []string{"listener"}, nil)}),
		n.metrics.Register(newSwarmCertificate(func() (begins, ends time.Time) {
			if n.swarm == nil {
				return begins, ends
			}
			st := n.swarm.Status()
			return st.CertificateBegins, st.CertificateEnds
		})),
	)
}

// disks collects the file systems of the agent's directories.
type disks struct {
	dirs                          map[string]string
	size, available, inodes, free *prometheus.Desc
}

func newDisks(dirs map[string]string) disks {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("longshore_disk_"+name, help+" of the agent's directory.", []string{"directory"}, nil)
	}
	return disks{
		dirs: dirs, size: desc("size_bytes", "Size of the file system"), available: desc("available_bytes", "Free bytes of the file system"),
		inodes: desc("inodes", "Inodes of the file system"), free: desc("inodes_free", "Free inodes of the file system"),
	}
}

// Describe implements prometheus.Collector.
func (d disks) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(d, ch) }

// Collect implements prometheus.Collector.
func (d disks) Collect(ch chan<- prometheus.Metric) {
	for name, dir := range d.dirs {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) != nil {
			continue
		}
		for desc, v := range map[*prometheus.Desc]uint64{d.size: st.Blocks * uint64(st.Bsize), d.available: st.Bavail * uint64(st.Bsize), d.inodes: st.Files, d.free: st.Ffree} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), name)
		}
	}
}

// certificateAges collects the ends of the certificates in files, as they are at the scrape.
type certificateAges struct {
	files map[string]string
	end   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c certificateAges) Describe(ch chan<- *prometheus.Desc) { ch <- c.end }

// Collect implements prometheus.Collector.
func (c certificateAges) Collect(ch chan<- prometheus.Metric) {
	for name, file := range c.files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		block, _ := pem.Decode(b)
		if block == nil {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			ch <- prometheus.MustNewConstMetric(c.end, prometheus.GaugeValue, float64(cert.NotAfter.Unix()), name)
		}
	}
}

// swarmCertificate has the times of the certificate of a worker of a Swarm. The node renews it.
type swarmCertificate struct {
	times        func() (begins, ends time.Time)
	begin, until *prometheus.Desc
}

func newSwarmCertificate(times func() (begins, ends time.Time)) swarmCertificate {
	return swarmCertificate{
		times: times,
		begin: prometheus.NewDesc("longshore_swarm_certificate_not_before_seconds", "When the node's certificate of its Swarm began, in seconds since 1970.", nil, nil),
		until: prometheus.NewDesc("longshore_swarm_certificate_not_after_seconds", "When the node's certificate of its Swarm expires, in seconds since 1970.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c swarmCertificate) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.begin
	ch <- c.until
}

// Collect implements prometheus.Collector. A node in no Swarm has none.
func (c swarmCertificate) Collect(ch chan<- prometheus.Metric) {
	begins, ends := c.times()
	if ends.IsZero() {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.begin, prometheus.GaugeValue, float64(begins.Unix()))
	ch <- prometheus.MustNewConstMetric(c.until, prometheus.GaugeValue, float64(ends.Unix()))
}

// The reasons of exits in metrics.
const (
	reasonCompleted  = "completed" // with status 0, and nobody had asked
	reasonRequested  = "requested"
	reasonFailed     = "failed" // with another status
	reasonSignal     = "signal"
	reasonMemory     = "oom"
	reasonUnhealthy  = "unhealthy"
	reasonNotStarted = "not_started"
	reasonLost       = "lost" // nobody saw the end
)

// countExits counts the ends of containers from the event log until ctx ends.
func countExits(ctx context.Context, n *node) {
	exits := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "longshore_exits_total", Help: "Ends of containers since the agent's start, by owner and reason."}, []string{"owner", "reason"})
	restarts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "longshore_restarts_total", Help: "Containers that were prepared to start again since the agent's start, by owner."}, []string{"owner"})
	for _, owner := range []core.Owner{core.OwnerCLI, core.OwnerDocker, core.OwnerCRI, core.OwnerSwarm, core.OwnerNomad, core.OwnerMesos} {
		restarts.WithLabelValues(string(owner)) // rates need the zero before the first one
		for _, reason := range []string{reasonCompleted, reasonRequested, reasonFailed, reasonSignal, reasonMemory, reasonUnhealthy, reasonNotStarted, reasonLost} {
			exits.WithLabelValues(string(owner), reason)
		}
	}
	if err := errors.Join(n.metrics.Register(exits), n.metrics.Register(restarts)); err != nil {
		n.log.ErrorContext(ctx, "ends of containers are not counted", "error", err)
		return
	}
	all := n.engine.All()
	since, err := all.LastSeq(ctx)
	if err != nil {
		n.log.ErrorContext(ctx, "ends of containers are not counted", "error", err)
		return
	}
	for ev, err := range all.Events(ctx, since, core.Filter{Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerCreated}}) {
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n.log.WarnContext(ctx, "ends of containers are not counted any more", "error", err)
			return
		case ev.Kind == core.EventContainerExited && ev.Autopsy != nil:
			exits.WithLabelValues(string(ev.Owner), exitReason(ev.Autopsy)).Inc()
		case ev.Kind == core.EventContainerCreated && ev.Note == core.NoteRenewed:
			restarts.WithLabelValues(string(ev.Owner)).Inc()
		}
	}
}

// exitReason returns why a container ended, as one word.
func exitReason(a *core.Autopsy) string {
	asked := autopsy.Reason(a.StopRequest, a.Exit)
	switch {
	case a.Start != "":
		return reasonNotStarted
	case asked != nil && asked.Call == core.UnhealthyCall:
		return reasonUnhealthy
	case a.OOM != nil && a.OOM.Main:
		return reasonMemory
	case asked != nil:
		return reasonRequested
	case a.Exit.Lost:
		return reasonLost
	case a.Exit.Signal != 0:
		return reasonSignal
	case a.Exit.Code != 0:
		return reasonFailed
	}
	return reasonCompleted
}
