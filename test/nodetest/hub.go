package nodetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// Hub is one running longshore-hub.
type Hub struct {
	Addr string // of nodes, as they reach it
	Dir  string

	t     *testing.T
	flags []string
	bin   string
	env   []string
	cmd   *exec.Cmd
}

// StartHub runs a hub for nodes at an address, and waits until it answers. It ends with the test.
func StartHub(t *testing.T, addr string, flags ...string) *Hub {
	t.Helper()
	return StartHubOf(t, Bin(t), nil, addr, flags...)
}

// StartHubOf is StartHub of another directory of binaries, with more in the hub's environment.
func StartHubOf(t *testing.T, bin string, env []string, addr string, flags ...string) *Hub {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-hub-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(dir+"/passphrase", []byte("a passphrase of tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &Hub{t: t, Addr: addr, Dir: dir, flags: flags, bin: bin, env: env}
	h.Up()
	t.Cleanup(func() {
		h.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(dir + "/log")
			t.Logf("the hub's log, its end:\n%s", log[max(0, len(log)-4000):])
		}
	})
	return h
}

// Up starts the hub, again after Kill.
func (h *Hub) Up() {
	h.t.Helper()
	h.start()
	roottest.Eventually(h.t, "the hub answers", h.answers)
}

// TryUp starts the hub, which may refuse to start. It returns whether it answers, and otherwise its last lines.
func (h *Hub) TryUp() (string, bool) {
	h.t.Helper()
	log := h.Dir + "/log"
	before, _ := os.ReadFile(log)
	h.start()
	up := false
	roottest.Eventually(h.t, "the hub answers or ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		if err != nil || strings.HasPrefix(state, "Z") {
			return true
		}
		up = h.answers()
		return up
	})
	after, err := os.ReadFile(log)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(after[len(before):]), up
}

func (h *Hub) answers() bool {
	_, err := h.CLI("", "token")
	return err == nil
}

func (h *Hub) start() {
	h.t.Helper()
	log, err := os.OpenFile(h.Dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := append([]string{"serve", "--dir", h.Dir + "/store", "--passphrase-file", h.Dir + "/passphrase", "--listen", h.Addr, "--socket", h.Socket()}, h.flags...)
	args = roottest.Inheriting(append([]string{filepath.Join(h.bin, "longshore-hub")}, args...)...)
	h.cmd = exec.Command(args[0], args[1:]...) //nolint:forbidigo // it ends by Kill
	h.cmd.Env = append(os.Environ(), h.env...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
}

// Pid is the hub's process.
func (h *Hub) Pid() int { return h.cmd.Process.Pid }

// Socket is where the hub serves operators of its own machine.
func (h *Hub) Socket() string { return h.Dir + "/hub.sock" }

// Kill ends it as a crash does.
func (h *Hub) Kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// Signal sends it a signal, such as SIGSTOP or SIGCONT.
func (h *Hub) Signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

// CLI runs a command of the hub's command line with something as its input.
func (h *Hub) CLI(input string, args ...string) (string, error) {
	return h.CLIAs("", input, append([]string{"--socket", h.Socket()}, args...)...)
}

// CLIAs runs the hub's command line in a directory, "" for the test's own. Its arguments name the
// socket or the address of the hub.
func (h *Hub) CLIAs(dir, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(h.t.Context(), filepath.Join(h.bin, "longshore-hub"), args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("longshore-hub %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Must is CLI that must succeed; it returns the output, without the last line's end.
func (h *Hub) Must(input string, args ...string) string {
	h.t.Helper()
	out, err := h.CLI(input, args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSuffix(out, "\n")
}

// HubTask is one line of `longshore-hub tasks --json`, HubNode one of nodes.
type HubTask struct {
	ID, Service, Node, Hostname, Desired, State, Message, Error string
	Exit                                                        int
	Version                                                     uint64
}

// HubNode is a node of a hub.
type HubNode struct {
	ID, Hostname, State, Availability, Membership, Engine string
}

// Tasks are the tasks of a service.
func (h *Hub) Tasks(service string) (list []HubTask) {
	h.t.Helper()
	h.list(&list, "tasks", "--json", service)
	return list
}

// Nodes are the hub's nodes.
func (h *Hub) Nodes() (list []HubNode) {
	h.t.Helper()
	h.list(&list, "nodes", "--json")
	return list
}

func (h *Hub) list(into any, args ...string) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.Must("", args...)), into); err != nil {
		h.t.Fatal(err)
	}
}

// Running waits until so many tasks of a service run, and no other is to; it returns them.
func (h *Hub) Running(service string, n int) (list []HubTask) {
	h.t.Helper()
	roottest.Eventually(h.t, fmt.Sprintf("%d tasks of %s run", n, service), func() bool {
		list = nil
		others := 0
		for _, task := range h.Tasks(service) {
			switch task.State {
			case "complete", "failed", "rejected", "shutdown":
			case "running":
				if task.Desired == "running" {
					list = append(list, task)
					continue
				}
				others++
			default:
				others++
			}
		}
		return len(list) == n && others == 0
	})
	return list
}
