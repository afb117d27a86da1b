package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

func TestDifferencesOfTwoRuns(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, r result) string {
		path := filepath.Join(dir, name)
		if err := r.write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before := write("old", result{Commit: "aaa", Machine: machine.Host{Kernel: "6.1", CPUs: 2}, Servers: map[string]samples{
		server.Longshore: {podStart: {10, 10, 10}, execSync: {5}, memory: {7}}, server.Containerd: {podStart: {100}},
	}})
	after := write("new", result{Commit: "bbb", Machine: machine.Host{Kernel: "6.12", CPUs: 2}, Servers: map[string]samples{
		server.Longshore: {podStart: {12, 12}, execSync: {5.1}, cpuLife: {1}}, server.CRIO: {podStart: {1}},
	}})
	var out strings.Builder
	if err := differences(&out, before, after); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"aaa", "bbb", "the machines differ: 6.1", "1.20 times, n >= 2  *\n", "1.02 times, n >= 1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, " times, "); n != 2 {
		t.Errorf("%d rows, but the runs share 2:\n%s", n, text)
	}
	if err := os.WriteFile(after, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := differences(&out, before, after); err == nil || !strings.Contains(err.Error(), after) {
		t.Errorf("a file that is cut: %v", err)
	}
}

func TestTheDocumentOfARun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	r := result{Commit: "abc", Machine: machine.Host{Kernel: "6.1", CPUs: 2, Busy: 0.01}, Servers: map[string]samples{
		server.Longshore: {podStart: {10}, podsPerSec: {100}, execSync: {3}}, server.Containerd: {podStart: {100}, podsPerSec: {10}}, server.CRIO: {podStart: {50}},
	}}
	if err := r.report(path, options{burst: 100, workers: 10}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Commit abc", "| | longshore | containerd | cri-o | ratio |\n|---|---|---|---|---|\n",
		"| pod start p50, ms | 10.00 | 100.00 | 50.00 | 0.200 |\n", "| 100 pods by 10 workers, pods/s | 100.00 | 10.00 | – | 10.000 |\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "ExecSync") || strings.Contains(string(text), "NaN") {
		t.Errorf("a row that no peer has:\n%s", text)
	}
}
