package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

// result is a run of the bench as its file has it.
type result struct {
	// Commit is that of the tree, with "+" if the tree has changes; "" is unknown.
	Commit  string             `json:"commit"`
	Date    string             `json:"date"`
	Machine machine.Host       `json:"machine"`
	Options string             `json:"options"` // the bench's arguments
	Servers map[string]samples `json:"servers"`
}

// newResult describes the tree and the machine, which it watches for a second.
func newResult(ctx context.Context, args []string) (*result, error) {
	r := &result{Date: time.Now().UTC().Format(time.DateOnly), Options: strings.Join(args, " "), Servers: map[string]samples{}}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
	}
	var err error
	r.Machine, err = machine.Describe(ctx)
	return r, err
}

func (r *result) write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

func readResult(path string) (*result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// smallChange is the smallest ratio of two medians that counts as a difference.
const smallChange = 1.05

// differences prints the medians of two runs side by side, those that differ first.
func differences(w io.Writer, oldFile, newFile string) error {
	before, err := readResult(oldFile)
	if err != nil {
		return err
	}
	after, err := readResult(newFile)
	if err != nil {
		return err
	}
	type row struct {
		label    string
		was, now float64
		n        int
	}
	var rows []row
	for name, s := range after.Servers {
		for key := range s {
			if was := before.Servers[name].at(key, 0.5); !math.IsNaN(was) {
				rows = append(rows, row{name + ": " + key, was, s.at(key, 0.5), min(len(s[key]), len(before.Servers[name][key]))})
			}
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return strings.Compare(a.label, b.label)
	})
	text := fmt.Sprintf("%s (%s, %.0f %% busy) and %s (%s, %.0f %% busy), medians:\n", before.Commit, before.Date, 100*before.Machine.Busy, after.Commit, after.Date, 100*after.Machine.Busy)
	if a, b := before.Machine, after.Machine; a.Kernel != b.Kernel || a.Processor != b.Processor || a.CPUs != b.CPUs {
		text += fmt.Sprintf("the machines differ: %s, %d of %s, and %s, %d of %s\n", a.Kernel, a.CPUs, a.Processor, b.Kernel, b.CPUs, b.Processor)
	}
	for _, r := range rows {
		mark := ""
		if ratio := r.now / r.was; ratio > smallChange || ratio < 1/smallChange {
			mark = "  *"
		}
		text += fmt.Sprintf("%-52s %10.2f %10.2f %8.2f times, n >= %d%s\n", r.label, r.was, r.now, r.now/r.was, r.n, mark)
	}
	_, err = io.WriteString(w, text)
	return err
}

// report writes the document of a run.
func (r *result) report(path string, o options) error {
	text := `# Performance

` + "`make bench`" + ` writes this file at the end of a run beside peers. Times are medians of all rounds, in which the servers take turns, each on
a machine of its own of namespaces and cgroups. The last column is ours divided by the better peer's. Between days a machine's speed varies,
so only the ratios of one run mean something.

`
	text += fmt.Sprintf("- Commit %s, %s\n- Linux %s, %d × %s, %d MB; others used %.0f %% of the processors before\n", r.Commit, r.Date, r.Machine.Kernel, r.Machine.CPUs, r.Machine.Processor, r.Machine.MemoryMB, 100*r.Machine.Busy)
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		if v := versions[name](); v != "" {
			text += fmt.Sprintf("- %s: %s\n", name, v)
		}
	}
	names := []string{server.Longshore}
	for _, name := range []string{server.Containerd, server.CRIO} {
		if r.Servers[name] != nil {
			names = append(names, name)
		}
	}
	text += "\n| | " + strings.Join(names, " | ") + " | ratio |\n|---" + strings.Repeat("|---", len(names)+1) + "|\n"
	for _, c := range comparisons(o) {
		if row := c.markdown(r.Servers, names[1:]); row != "" {
			text += row + "\n"
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// versions ask the peers of the environment for their versions.
var versions = map[string]func() string{ //nolint:gochecknoglobals // a table
	"containerd": func() string { return versionOf(os.Getenv("CONTAINERD")) },
	"CRI-O":      func() string { return versionOf(os.Getenv("CRIO")) },
	"runtime":    func() string { return versionOf(server.PeersOf(os.Getenv).Crun) },
}

// versionOf returns the first line that a program prints about its version; "" without a program.
func versionOf(path string) string {
	if path == "" {
		return ""
	}
	out, err := exec.CommandContext(context.Background(), path, "--version").Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
