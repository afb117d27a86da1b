package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/obs"
)

// stages reports the durations of the engine's stages to the metrics.
type stages struct{ m *obs.Metrics }

// Stage implements engine.Observer.
func (s stages) Stage(owner core.Owner, verb, stage string, took time.Duration) {
	s.m.Stage(string(owner), verb+"."+stage, took)
}

// failPointEnv names the stage for crash tests: the agent dies at "stage", or with "stage@file" at the
// stage if that file exists.
const failPointEnv = "LONGSHORE_FAILPOINT"

// failPoint returns a function that kills the agent at a stage, as failPointEnv says it; "" is none.
func failPoint(at string) func(string) error {
	if at == "" {
		return nil
	}
	at, file, armed := strings.Cut(at, "@")
	return func(stage string) error {
		if stage != at || armed && !exists(file) {
			return nil
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return errors.New("killed at " + at)
	}
}

// health makes a round trip through the engine and its store.
func (n *node) health(ctx context.Context) error {
	if n.engine == nil {
		return errors.New("recovering")
	}
	_, err := n.engine.All().LastSeq(ctx)
	return err
}

// httpHandler returns the handler of metrics, health and pprof.
func (n *node) httpHandler() http.Handler {
	var pods http.Handler
	if n.cfg.Metrics.Cadvisor && n.cfg.Face.CRI.Enabled {
		pods = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			scrapes := n.scrapes.Load()
			if scrapes == nil {
				http.Error(w, "recovering", http.StatusServiceUnavailable)
				return
			}
			(*scrapes).ServeHTTP(w, r)
		})
	}
	return obs.Handler(n.metrics, n.health, pods)
}

// lostOutput returns the number of bytes of a process's output that no sink took.
func (n *node) lostOutput(ctx context.Context, ref core.Ref) uint64 {
	all, err := n.keeper.Processes(ctx)
	if err != nil {
		return 0
	}
	for _, p := range all {
		if p.Ref == ref {
			return p.Lost
		}
	}
	return 0
}

// nodeStats returns the node's stats. It is called whenever metrics are collected.
func (n *node) nodeStats(ctx context.Context) obs.Node {
	var f obs.Node
	if n.engine == nil {
		return f
	}
	all := n.engine.All()
	count := map[obs.Objects]int{}
	if sandboxes, err := all.Sandboxes(ctx, core.Filter{}); err == nil {
		for _, s := range sandboxes {
			count[obs.Objects{Owner: string(s.Owner), Kind: "sandbox", State: string(s.State)}]++
		}
	}
	if containers, err := all.Containers(ctx, core.Filter{}); err == nil {
		for _, c := range containers {
			count[obs.Objects{Owner: string(c.Owner), Kind: "container", State: string(c.State)}]++
			if c.Health != nil && c.State.Runs() {
				count[obs.Objects{Owner: string(c.Owner), Kind: "health", State: c.Health.Status}]++
			}
			if c.State == core.ContainerAsleep && c.Rest != nil {
				f.SleepingBytes += c.Rest.Given
			}
		}
	}
	if n.rests != nil {
		f.WakeFaults = n.rests.Faults()
	}
	for o, k := range count {
		o.N = k
		f.Objects = append(f.Objects, o)
	}
	f.Head, _ = all.LastSeq(ctx)
	if s, err := n.keeper.Status(ctx); err == nil {
		f.LostOutput = s.Lost
		f.KeeperBytes, f.NestBytes = pss(s.KeeperPid), pss(s.NestPid)
	}
	return f
}

// pss returns a process's proportional set size in bytes, 0 when unknown.
func pss(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			kb, _ := strconv.ParseUint(f[1], 10, 64)
			return kb * 1024
		}
	}
	return 0
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
