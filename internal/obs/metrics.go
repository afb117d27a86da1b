package obs

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the agent's own metrics. Label values come from closed sets, so an id is never one.
// Every method is safe on a nil *Metrics, which does nothing.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	panics   *prometheus.CounterVec
	stages   *prometheus.HistogramVec
	thawed   prometheus.Histogram
	wakes    prometheus.Histogram
	stage    sync.Map // of a face and a stage → its prometheus.Observer, because a lookup by labels hashes them
	store    *prometheus.HistogramVec
	pulled   prometheus.Counter
}

// Options are the parameters of New.
type Options struct {
	// Version is shown by longshore_build_info; "" leaves that out.
	Version string
	// Node returns the stats that are read when metrics are collected; nil leaves them out. It
	// must answer fast and from memory.
	Node func(context.Context) Node
}

// Node holds the node's present stats.
type Node struct {
	Objects []Objects
	// KeeperBytes and NestBytes are proportional set sizes; 0 when unknown.
	KeeperBytes, NestBytes uint64
	// Head is the Seq of the newest event.
	Head uint64
	// LostOutput counts bytes of output that no sink took.
	LostOutput uint64
	// SleepingBytes is the memory that sleeping containers have freed. WakeFaults is a sum over the complete wakes.
	SleepingBytes, WakeFaults uint64
}

// Objects counts one kind of object of one owner in one state.
type Objects struct {
	Owner, Kind, State string // Kind is sandbox or container
	N                  int
}

// durations returns the histogram buckets, in seconds, from a lookup to a slow pull.
func durations() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// New returns metrics with a registry of their own.
func New(o Options) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "longshore_request_duration_seconds", Help: "How long calls to a face took, by face, call and result code.", Buckets: durations(),
		}, []string{"face", "op", "code"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_request_panics_total", Help: "Panics in handlers, each answered as an internal error.",
		}, []string{"face"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "longshore_engine_stage_duration_seconds", Help: "How long the stages of the engine's verbs took, by the face to which the object belongs.", Buckets: durations(),
		}, []string{"face", "stage"}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "longshore_store_transaction_duration_seconds", Help: "How long store transactions took that change something, by kind (update).", Buckets: durations(),
		}, []string{"kind"}),
		pulled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "longshore_image_pulled_bytes_total", Help: "Bytes of layers and configs that pulls have fetched from registries.",
		}),
	}
	m.thawed = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "longshore_wake_latency_seconds", Help: "How long it took until the processes of a sleeping container ran again.", Buckets: durations(),
	})
	m.wakes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "longshore_wake_seconds", Help: "How long it took after a wake until all pages of a container were restored.", Buckets: durations(),
	})
	m.registry.MustRegister(m.requests, m.panics, m.stages, m.store, m.pulled, m.thawed, m.wakes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Version != "" {
		info := prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "longshore_build_info", Help: "Always 1; the label tells the version.", ConstLabels: prometheus.Labels{"version": o.Version},
		})
		info.Set(1)
		m.registry.MustRegister(info)
	}
	if o.Node != nil {
		m.registry.MustRegister(newNodeCollector(o.Node))
	}
	return m
}

// Request counts one call. Op and code must come from closed sets.
func (m *Metrics) Request(face, op, code string, took time.Duration) {
	if m != nil {
		m.requests.WithLabelValues(face, op, code).Observe(took.Seconds())
	}
}

// Panic counts a recovered panic of a face's handler.
func (m *Metrics) Panic(face string) {
	if m != nil {
		m.panics.WithLabelValues(face).Inc()
	}
}

// Stage records one stage of an engine's verb, such as create.root, on an object of a face.
func (m *Metrics) Stage(face, stage string, took time.Duration) {
	if m != nil {
		key := [2]string{face, stage}
		o, ok := m.stage.Load(key)
		if !ok {
			o, _ = m.stage.LoadOrStore(key, m.stages.WithLabelValues(face, stage))
		}
		o.(prometheus.Observer).Observe(took.Seconds()) //nolint:forcetypeassert // nothing else is stored
	}
}

// StoreTransaction records one transaction; kind is update. Reads are not recorded: they
// come from memory, and are too many.
func (m *Metrics) StoreTransaction(kind string, took time.Duration) {
	if m != nil {
		m.store.WithLabelValues(kind).Observe(took.Seconds())
	}
}

// Thawed records how long a wake took until the processes ran, and Woken until all of their memory was restored.
func (m *Metrics) Thawed(took time.Duration) {
	if m != nil {
		m.thawed.Observe(took.Seconds())
	}
}

// Woken is described with Thawed.
func (m *Metrics) Woken(took time.Duration) {
	if m != nil {
		m.wakes.Observe(took.Seconds())
	}
}

// Pulled counts bytes fetched from registries.
func (m *Metrics) Pulled(n int64) {
	if m != nil && n > 0 {
		m.pulled.Add(float64(n))
	}
}

// Register adds a collector of another package; the registry refuses a second
// one of the same name.
func (m *Metrics) Register(c prometheus.Collector) error { return m.registry.Register(c) }

// nodeTimeout bounds how long a scrape waits for the node's stats.
const nodeTimeout = 5 * time.Second

type nodeCollector struct {
	node                        func(context.Context) Node
	objects, memory, head, lost *prometheus.Desc
	sleeping, faults            *prometheus.Desc
}

func newNodeCollector(node func(context.Context) Node) *nodeCollector {
	return &nodeCollector{
		node:    node,
		objects: prometheus.NewDesc("longshore_engine_objects", "Objects on record, by owner, kind and state; of kind health, running containers with a health check by its result.", []string{"owner", "kind", "state"}, nil),
		memory:  prometheus.NewDesc("longshore_keeper_memory_bytes", "Proportional set size of keeper and nest.", []string{"kind"}, nil),
		head:    prometheus.NewDesc("longshore_event_log_head", "Sequence number of the newest event.", nil, nil),
		lost:    prometheus.NewDesc("longshore_keeper_lost_output_bytes_total", "Output of containers that no sink took.", nil, nil),

		sleeping: prometheus.NewDesc("longshore_sleeping_bytes", "Memory that sleeping containers have freed.", nil, nil),
		faults:   prometheus.NewDesc("longshore_wake_faults_total", "Accesses that waited for a page after a wake.", nil, nil),
	}
}

func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.objects, c.memory, c.head, c.lost, c.sleeping, c.faults} {
		ch <- d
	}
}

func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	n := c.node(ctx)
	gauge := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, o := range n.Objects {
		gauge(c.objects, uint64(max(o.N, 0)), o.Owner, o.Kind, o.State)
	}
	for kind, bytes := range map[string]uint64{"keeper": n.KeeperBytes, "nest": n.NestBytes} {
		if bytes > 0 {
			gauge(c.memory, bytes, kind)
		}
	}
	gauge(c.head, n.Head)
	ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(n.LostOutput))
	ch <- prometheus.MustNewConstMetric(c.sleeping, prometheus.GaugeValue, float64(n.SleepingBytes))
	ch <- prometheus.MustNewConstMetric(c.faults, prometheus.CounterValue, float64(n.WakeFaults))
}
