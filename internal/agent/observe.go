package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/obs"
)

// stages tells the metrics how long the engine's stages took.
type stages struct{ m *obs.Metrics }

// Stage implements engine.Observer.
func (s stages) Stage(verb, stage string, took time.Duration) { s.m.Stage(verb+"."+stage, took) }

// failPoint kills the agent where it is named: the crash tests set it in the
// environment. "" is none.
func failPoint(at string) func(string) error {
	if at == "" {
		return nil
	}
	return func(stage string) error {
		if stage != at {
			return nil
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return errors.New("killed at " + at)
	}
}

// health is one round trip through the engine and its store.
func (n *node) health(ctx context.Context) error {
	if n.engine == nil {
		return errors.New("recovering")
	}
	_, err := n.engine.All().LastSeq(ctx)
	return err
}

// lostOutput counts the bytes of a process's output that no sink took.
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

// nodeStats reads the node's numbers; it is called whenever metrics are collected.
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
		}
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

// pss is a process's proportional set size in bytes, 0 when not known.
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
