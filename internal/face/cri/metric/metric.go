// Package metric tells figures as metrics: the names, labels and meanings that
// cadvisor gave them and that kubelet passes on.
//
// It is pure: descriptors and core.Stats in, the CRI's messages or the text that
// Prometheus reads out. It must not know where figures come from. A figure that the
// kernel did not tell makes no metric; zero stands for "no limit" where cadvisor
// says so, which the help texts repeat. A number of seconds is in the CRI's double_value,
// and without its fraction in value, which older clients read.
//
// Start at Set; table.go is the list.
package metric

import (
	"slices"
	"time"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// Object is a pod or a container, and its figures.
type Object struct {
	Pod       *v1.PodSandboxMetadata
	Container string // its name; "" for a pod
	ID        string // of its cgroup
	Name      string // the container's ID; "" for a pod
	Image     string
	Started   time.Time
	// Main is the pid of a container's main process; 0 when there is none.
	Main  int
	Stats core.Stats
}

// The labels that every metric has, sorted as the protocol wants them.
var base = [...]string{"container", "id", "image", "name", "namespace", "pod"} //nolint:gochecknoglobals // constant

func (o *Object) labels() [len(base)]string {
	return [...]string{o.Container, o.ID, o.Image, o.Name, o.Pod.GetNamespace(), o.Pod.GetName()}
}

// sample is one value of a metric; labels are those beside the base, in the
// metric's own order. A zero time is now.
type sample struct {
	value  core.Value
	labels []string
	at     time.Time
}

// metric is one row of the table.
type metric struct {
	name, help string
	kind       v1.MetricType
	labels     []string
	samples    func(o *Object) []sample
	// unit is how many units of the samples make one of the metric; 0 means 1.
	unit uint64

	keys []string // all labels, sorted
	from []int    // of each key: its place in base, or len(base) and its place in labels
}

// fraction is a sample in the metric's unit.
func (m *metric) fraction(v core.Value) float64 { return float64(v.N) / float64(m.unit) }

// Set is the metrics in the order in which they are described.
type Set struct{ metrics []metric }

// New returns the set of all metrics.
func New() *Set {
	s := &Set{metrics: table()}
	for i := range s.metrics {
		m := &s.metrics[i]
		m.unit = max(m.unit, 1)
		m.keys = slices.Sorted(slices.Values(slices.Concat(base[:], m.labels)))
		for _, k := range m.keys {
			at := slices.Index(base[:], k)
			if at < 0 {
				at = len(base) + slices.Index(m.labels, k)
			}
			m.from = append(m.from, at)
		}
	}
	return s
}

// Descriptors describes the metrics. They are the same as long as the process
// lives.
func (s *Set) Descriptors() []*v1.MetricDescriptor {
	out := make([]*v1.MetricDescriptor, 0, len(s.metrics))
	for _, m := range s.metrics {
		out = append(out, &v1.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: m.keys})
	}
	return out
}

// Of are the metrics of one object.
func (s *Set) Of(o *Object) []*v1.Metric {
	out := make([]*v1.Metric, 0, len(s.metrics))
	known := o.labels()
	for i := range s.metrics {
		m := &s.metrics[i]
		for _, x := range m.samples(o) {
			if !x.value.OK {
				continue
			}
			values := make([]string, len(m.from))
			for j, at := range m.from {
				if at < len(known) {
					values[j] = known[at]
				} else {
					values[j] = x.labels[at-len(known)]
				}
			}
			one := &v1.Metric{Name: m.name, MetricType: m.kind, LabelValues: values, Value: &v1.UInt64Value{Value: x.value.N / m.unit}}
			if m.unit > 1 {
				one.DoubleValue = &v1.DoubleValue{Value: m.fraction(x.value)}
			}
			if !x.at.IsZero() {
				one.Timestamp = x.at.UnixNano()
			}
			out = append(out, one)
		}
	}
	return out
}
