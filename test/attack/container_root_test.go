package attack

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// containerAttempts are those of a container's root, with any program.
func containerAttempts() []attempt {
	var all []attempt
	for _, a := range []actor{containerRoot, withPtrace, withoutAdmin} {
		for _, p := range probes() {
			if !slices.Contains(p.granted, a) {
				all = append(all, attempt{name: p.name, actor: a, run: func(t *testing.T, w *world) result {
					return w.confined(t, w.container(t, a), p, w.secret)
				}})
			}
		}
	}
	// With the host's pid namespace a container sees the node's processes; without
	// SYS_PTRACE it can read only their names.
	for _, p := range processProbes() {
		for _, of := range []string{"agent", "keeper", "nest"} {
			all = append(all, attempt{name: "the " + of + ", " + p.name, actor: containerRoot, run: func(t *testing.T, w *world) result {
				return w.confined(t, w.amongProcesses(t), p, strconv.Itoa(w.processOf(t, of)))
			}})
		}
	}
	return all
}

// processOf returns the pid of one of the node's own processes.
func (w *world) processOf(t *testing.T, of string) int {
	t.Helper()
	if of == "agent" {
		return w.Pid()
	}
	pids := nodetest.Pair(of)
	if len(pids) != 1 {
		t.Fatalf("%d processes are the %s", len(pids), of)
	}
	return pids[0]
}

// amongProcesses returns a container in the node's pid namespace.
func (w *world) amongProcesses(t *testing.T) *nodetest.Container {
	t.Helper()
	const as = "container root among the node's processes"
	if c := w.inside[as]; c != nil {
		return c
	}
	cfg := w.PodConfig("hostpid")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
	c := w.attacker("attacker", as)
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
	w.inside[as] = w.RunPod(t, cfg).Run(t, c)
	return w.inside[as]
}

// confined runs a probe in a container, and the same probe outside as its control.
func (w *world) confined(t *testing.T, c *nodetest.Container, p probe, args ...string) result {
	t.Helper()
	r := w.probe(t, c, p.name, args...)
	if p.outside != "" {
		return r
	}
	switch host := w.control(t, p); {
	case host.Outcome == absent:
		return host
	case host.Outcome == refused:
		return is(absent, "the host's root may not do it on this machine either: %s", host.Evidence)
	case host.Outcome != reached:
		return is(unmade, "the host's root does not reach it either: %s", host)
	case r.Outcome == absent:
		return is(refused, "it is not there (%s); for the host's root: %s", r.Evidence, host.Evidence)
	}
	return r
}

// control runs a probe as the host's root, once, in a mount namespace of its own.
func (w *world) control(t *testing.T, p probe) result {
	t.Helper()
	r, done := w.host[p.name]
	if done {
		return r
	}
	target := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	if err := target.Start(); err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _, _ = target.Process.Signal(os.Kill), target.Wait() }()
	r = w.on(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS} }, p.name, strconv.Itoa(target.Process.Pid))
	w.host[p.name] = r
	return r
}
