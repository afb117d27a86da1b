package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/runtime/granted"
)

// processes returns the node's own processes that run all the time, with their programs.
func (n *node) processes(ctx context.Context) []control.Process {
	self := ownProgram()
	all := []control.Process{{Name: agentProcess, Pid: os.Getpid(), Version: n.version, Path: self}}
	ctx, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	if s, err := n.keeper.Status(ctx); err == nil {
		all = append(all, control.Process{Name: keeperProcess, Pid: s.KeeperPid, Version: s.Version, Path: n.binary})
		if s.NestPid > 0 {
			all = append(all, control.Process{Name: nestProcess, Pid: s.NestPid, Path: n.binary})
		}
	}
	if pid := n.network.NamesPid(); pid > 0 {
		all = append(all, control.Process{Name: namesProcess, Pid: pid, Path: self})
	}
	if s, there := n.board.Status(ctx); there {
		all = append(all, control.Process{Name: boardProcess, Pid: s.PID, Path: self})
	}
	all = append(all, n.wasmProcesses(ctx)...)
	for i := range all {
		p := &all[i]
		if same, err := runsProgram(p.Pid, p.Path); err == nil {
			p.State = control.ProcessReplaced
			if same {
				p.State = control.ProcessCurrent
			}
		}
		if p.Version == "" && p.State == control.ProcessCurrent { // of the agent's release
			p.Version = n.version
		}
	}
	return all
}

// wasmProcesses returns the processes that run WebAssembly programs.
func (n *node) wasmProcesses(ctx context.Context) (all []control.Process) {
	path, err := granted.WorkerPath()
	if err != nil {
		return nil
	}
	list, err := n.engine.All().Containers(ctx, core.Filter{})
	if err != nil {
		return nil
	}
	for _, c := range list {
		if c.Runtime != core.GrantHandler || c.Main.Pid <= 0 || c.State != core.ContainerRunning && c.State != core.ContainerPaused {
			continue
		}
		program, err := os.Readlink("/proc/" + strconv.Itoa(c.Main.Pid) + "/exe")
		if err == nil && filepath.Base(strings.TrimSuffix(program, " (deleted)")) == filepath.Base(path) {
			all = append(all, control.Process{Name: wasmProcess, Pid: c.Main.Pid, Path: path})
		}
	}
	return all
}

// The names of the processes.
const (
	agentProcess  = "agent"
	keeperProcess = "keeper"
	nestProcess   = "nest"
	namesProcess  = "names"
	boardProcess  = "board"
	wasmProcess   = "wasm" // of a container; it runs the installed program from the container's next start on
)

// upgrade has the agent, or else the keeper, become the installed program, and returns its name. The agent comes first,
// because a newer agent speaks with an older keeper; it executes the next program after the answer.
func (n *node) upgrade(ctx context.Context) ([]string, error) {
	for _, p := range n.processes(ctx) {
		switch {
		case p.State == control.ProcessCurrent:
		case p.Name == agentProcess:
			return []string{agentProcess}, n.next.choose(ctx, p.Path, func(ctx context.Context, oldest, newest int) error {
				return keeper.MaySpeak(ctx, n.keeper, oldest, newest)
			})
		case p.Name == keeperProcess:
			if err := n.next.letCallsEnd(ctx); err != nil {
				return nil, err
			}
			if err := n.keeper.Upgrade(ctx, p.Path); err != nil {
				return nil, err
			}
			n.log.InfoContext(ctx, "the keeper has become the installed program", "pid", p.Pid, "path", p.Path, "before", p.Version)
			return []string{keeperProcess}, nil
		case p.Name == namesProcess:
			return []string{namesProcess}, n.network.RenewNames(ctx)
		case p.Name == boardProcess:
			return []string{boardProcess}, n.board.Renew(ctx)
		}
	}
	return nil, nil
}

// programsFinding compares the processes with the installed programs. A nest of an earlier release is as good as a new one:
// it only keeps descriptors, and its protocol is frozen. A WebAssembly program's process stays until its container's next start.
func programsFinding(list []control.Process, failure string) control.Finding {
	if failure != "" {
		return warn("programs", "install a program that starts, and call `longshore upgrade`", "the installed agent did not start, and its predecessor continues: %s", failure)
	}
	var others []string
	stay := map[string]int{}
	for _, p := range list {
		switch {
		case p.State != control.ProcessReplaced:
		case p.Name == nestProcess || p.Name == wasmProcess:
			stay[p.Name]++
		default:
			others = append(others, fmt.Sprintf("%s, pid %d", p.Name, p.Pid))
		}
	}
	if len(others) > 0 {
		return warn("programs", "`longshore upgrade` replaces agent, keeper, name server and board under running containers",
			"other programs than the installed ones: %s", strings.Join(others, "; "))
	}
	if n := stay[wasmProcess]; n > 0 {
		return ok("programs", "%d processes, each from its installed file but %d of WebAssembly programs, until their containers' next start", len(list), n)
	}
	return ok("programs", "%d processes, each from its installed file", len(list))
}

// ownProgram returns the path of the agent's program, which may have been replaced meanwhile.
func ownProgram() string {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return os.Args[0]
	}
	return strings.TrimSuffix(path, " (deleted)")
}

// runsProgram reports whether a process runs the program at path: the same file, or one with the same content.
func runsProgram(pid int, path string) (bool, error) {
	running := "/proc/" + strconv.Itoa(pid) + "/exe"
	a, err := os.Stat(running)
	if err != nil {
		return false, err
	}
	b, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if os.SameFile(a, b) || a.Size() != b.Size() {
		return os.SameFile(a, b), nil
	}
	return sameContent(running, path)
}

// sameContent reports whether two files have the same content. It ends at the first difference, which is near the beginning of the
// programs of two builds.
func sameContent(one, other string) (bool, error) {
	a, err := os.Open(one)
	if err != nil {
		return false, err
	}
	defer func() { _ = a.Close() }()
	b, err := os.Open(other)
	if err != nil {
		return false, err
	}
	defer func() { _ = b.Close() }()
	first, second := make([]byte, compared), make([]byte, compared)
	for {
		n, err := io.ReadFull(a, first)
		m, otherErr := io.ReadFull(b, second)
		switch {
		case !bytes.Equal(first[:n], second[:m]):
			return false, nil
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		case err != nil || otherErr != nil:
			return false, errors.Join(err, otherErr)
		}
	}
}

// compared is how many bytes of two programs are compared at once.
const compared = 64 << 10
