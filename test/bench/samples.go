package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// The names of the measurements that servers are compared by.
const (
	podStart    = "pod start"
	runSandbox  = "RunPodSandbox"
	createCont  = "CreateContainer"
	startCont   = "StartContainer"
	createStart = "CreateContainer and StartContainer"
	podsPerSec  = "pods per second"
	cpuStart    = "CPU per pod start"
	cpuLife     = "CPU per pod"
	memory      = "memory per pod"
	execSync    = "ExecSync"
	listConts   = "ListContainers"
	listStats   = "ListContainerStats"
	podStats    = "ListPodSandboxStats"
	stopRemove  = "stop and remove"
	recovered   = "recovery"
	logRecords  = "log records"
	manyLists   = "ListContainers of many"
	manyPods    = "ListPodSandbox of many"
	manyStatus  = "ContainerStatus beside many"
	manySandbox = "PodSandboxStatus beside many"
	flatness    = "pod start beside many"
	flatAfter   = "pod start beside many, after a removal"
	idleCPU     = "idle CPU"
)

// samples are the measurements by name, times in milliseconds.
type samples map[string][]float64

func (f samples) write(path string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// take adds the samples of a file.
func (f samples) take(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var more samples
	if err := json.Unmarshal(b, &more); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for name, samples := range maps.All(more) {
		f[name] = append(f[name], samples...)
	}
	return nil
}

// at is a quantile; NaN of none.
func (f samples) at(name string, q float64) float64 {
	all := slices.Sorted(slices.Values(f[name]))
	if len(all) == 0 {
		return math.NaN()
	}
	return all[max(0, int(math.Ceil(q*float64(len(all))))-1)]
}

// row prints durations, and keeps them under a name unless that is "". It sorts d.
func (b *bench) row(name, label string, d []time.Duration) {
	slices.Sort(d)
	f := samples{label: millis(d)}
	fmt.Printf("%-28s %8.2f ms p50 %8.2f p99 %8.2f min\n", label, f.at(label, 0.5), f.at(label, 0.99), ms(d[0]))
	b.keep(name, millis(d)...)
}

// value prints one figure with its label, and keeps it as row does.
func (b *bench) value(name, label string, v float64, what string, args ...any) {
	fmt.Printf("%-28s %8.2f %s\n", label, v, fmt.Sprintf(what, args...))
	b.keep(name, v)
}

func (b *bench) keep(name string, samples ...float64) {
	if name != "" {
		b.samples[name] = append(b.samples[name], samples...)
	}
}

func millis(d []time.Duration) []float64 {
	m := make([]float64, len(d))
	for i := range d {
		m[i] = ms(d[i])
	}
	return m
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func middle(d []time.Duration) time.Duration { return d[len(d)/2] } // sorted by row
