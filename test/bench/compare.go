package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

// steps are the steps of each server in a comparison.
var steps = map[string]string{
	server.Longshore:     "start,exec,log,burst,flat",
	server.LongshoreCrun: "start",
	server.Containerd:    "start,exec,log,burst,many",
	server.CRIO:          "start,exec,log,burst,many",
}

// compare measures the servers one after the other, each on a machine of its own that ends before the next begins. Of
// several it prints how they stand.
func compare(ctx context.Context, o options, names []string) error {
	dir, err := os.MkdirTemp("", "longshore-bench-samples-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r, err := newResult(ctx, os.Args[1:])
	if err != nil {
		return err
	}
	if err := r.Machine.Quiet(os.Stdout, o.quiet); err != nil {
		return err
	}
	for round := range o.rounds {
		for _, name := range names {
			file := filepath.Join(dir, fmt.Sprintf("%s-%d.json", name, round))
			args := []string{"-server", name, "-samples", file}
			if o.steps == "" && len(names) > 1 {
				args = append(args, "-steps", steps[name])
			}
			if err := machine.Run(ctx, append(os.Args[1:len(os.Args):len(os.Args)], args...)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if r.Servers[name] == nil {
				r.Servers[name] = samples{}
			}
			if err := r.Servers[name].take(file); err != nil {
				return err
			}
			fmt.Println()
		}
	}
	if len(names) > 1 {
		header("all servers")
		table(r.Servers, o)
		if o.report != "" {
			err = r.report(o.report, o)
		}
	}
	if o.samples != "" {
		err = errors.Join(err, r.write(o.samples))
	}
	return err
}

// comparison is one row of the table: ours divided by the better of the others.
type comparison struct {
	label string
	name  string
	at    float64 // quantile
	// wanted is the ratio that ours should not be above; where more is better,
	// not below. 0 is none.
	wanted float64
	more   bool
	ours   string // the server that is ours here; "" is Longshore
	note   string // a note about the row
}

func comparisons(o options) []comparison {
	many := manyTimes * o.burst
	return []comparison{
		{label: "pod start p50, ms", name: podStart, at: 0.5, wanted: 1. / 8},
		{label: "pod start p99, ms", name: podStart, at: 0.99, wanted: 1. / 5},
		{label: "  by the same OCI runtime, p50, ms", name: podStart, at: 0.5, wanted: 1. / 4, ours: server.LongshoreCrun},
		{label: "  RunPodSandbox p50, ms", name: runSandbox, at: 0.5, wanted: 1},
		{label: "  CreateContainer p50, ms", name: createCont, at: 0.5, note: "does what StartContainer does elsewhere: see both"},
		{label: "  StartContainer p50, ms", name: startCont, at: 0.5, wanted: 1},
		{label: "  both of these p50, ms", name: createStart, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("%d pods by %d workers, pods/s", o.burst, o.workers), name: podsPerSec, at: 0.5, wanted: 5, more: true},
		{label: "CPU per pod start, ms", name: cpuStart, at: 0.5, wanted: 1. / 6},
		{label: "CPU per pod's life, ms", name: cpuLife, at: 0.5, wanted: 1. / 6},
		{label: "memory per pod, KB PSS", name: memory, at: 0.5, wanted: 1. / 4},
		{label: "ExecSync p50, ms", name: execSync, at: 0.5, wanted: 1. / 3},
		{label: fmt.Sprintf("log records of %d lines", logLines), name: logRecords, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("ListContainers, %d, ms", o.burst), name: listConts, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("ListContainerStats, %d, ms", o.burst), name: listStats, at: 0.5, wanted: 1. / 10},
		{label: fmt.Sprintf("ListPodSandboxStats, %d, ms", o.burst), name: podStats, at: 0.5, wanted: 1. / 10},
		{label: "stop + remove p50, ms", name: stopRemove, at: 0.5, wanted: 1. / 8},
		{label: "SIGKILL to a right list, ms", name: recovered, at: 0.5, wanted: 1. / 10},
		{label: fmt.Sprintf("ListContainers, %d, ms", many), name: manyLists, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("ListPodSandbox, %d, ms", many), name: manyPods, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("ContainerStatus, %d, ms", many), name: manyStatus, at: 0.5, wanted: 1},
		{label: fmt.Sprintf("PodSandboxStatus, %d, ms", many), name: manySandbox, at: 0.5, wanted: 1},
	}
}

func table(all map[string]samples, o options) {
	others := []string{}
	for _, name := range []string{server.Containerd, server.CRIO} {
		if all[name] != nil {
			others = append(others, name)
		}
	}
	fmt.Printf("%-30s %10s", "", "longshore")
	for _, name := range others {
		fmt.Printf(" %10s", name)
	}
	fmt.Printf(" %10s %10s\n", "ratio", "wanted")
	for _, l := range comparisons(o) {
		if text := l.format(all, others); text != "" {
			fmt.Println(text)
		}
	}
	for _, own := range []struct {
		label, name string
		most        float64 // 0 is none
	}{
		{fmt.Sprintf("start beside %d: beside none", manyTimes*o.burst), flatness, 1.3},
		{"  right after a removal", flatAfter, 0},
		{"idle agent, % of a core", idleCPU, 1},
	} {
		v, wanted := all[server.Longshore].at(own.name, 0.5), ""
		if own.most > 0 {
			wanted = fmt.Sprintf("<= %.3g", own.most) + missed(v <= own.most)
		}
		if !math.IsNaN(v) {
			fmt.Println(strings.TrimRight(fmt.Sprintf("%-30s %10.2f%*s %s", own.label, v, 11*(len(others)+1), "", wanted), " "))
		}
	}
}

func missed(held bool) string {
	if held {
		return ""
	}
	return "  missed"
}

// values returns the values of ours and of the others, and the ratio of ours to the best of these; NaN where ours or all
// others have no sample.
func (l comparison) values(all map[string]samples, others []string) (values []float64, ratio float64) {
	if l.ours == "" {
		l.ours = server.Longshore
	}
	best := math.NaN()
	values = []float64{all[l.ours].at(l.name, l.at)}
	for _, name := range others {
		v := all[name].at(l.name, l.at)
		values = append(values, v)
		if math.IsNaN(best) || l.more && v > best || !l.more && v < best {
			best = v
		}
	}
	return values, values[0] / best
}

// markdown returns the row of a document; "" where there is no ratio.
func (l comparison) markdown(all map[string]samples, others []string) string {
	values, ratio := l.values(all, others)
	if math.IsNaN(ratio) {
		return ""
	}
	text := "| " + strings.TrimSpace(l.label)
	for _, v := range values {
		if math.IsNaN(v) {
			text += " | –"
			continue
		}
		text += fmt.Sprintf(" | %.2f", v)
	}
	return text + fmt.Sprintf(" | %.3f |", ratio)
}

// format returns the row; "" where there is no ratio.
func (l comparison) format(all map[string]samples, others []string) string {
	values, ratio := l.values(all, others)
	if math.IsNaN(ratio) {
		return ""
	}
	text := fmt.Sprintf("%-30s", l.label)
	for _, v := range values {
		text += fmt.Sprintf(" %10.2f", v)
	}
	sign := "<="
	if l.more {
		sign = ">="
	}
	text += fmt.Sprintf(" %10.3f", ratio)
	if l.wanted == 0 {
		return strings.TrimRight(fmt.Sprintf("%s %10s  %s", text, "", l.note), " ")
	}
	return text + fmt.Sprintf(" %10s%s", fmt.Sprintf("%s %.3f", sign, l.wanted), missed(l.more && ratio >= l.wanted || !l.more && ratio <= l.wanted))
}
