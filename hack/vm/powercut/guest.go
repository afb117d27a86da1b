package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataDev  = "/dev/vdc"
	dataDir  = "/data"
	stateDir = "/run/longshore"
	agentLog = "/run/agent.log"
	// cliPatience bounds one command; emulation is slow.
	cliPatience = 3 * time.Minute
)

// node is the guest's side.
type node struct {
	bin     string
	mu      sync.Mutex // serializes the lines that say writes
	console *os.File
	agent   *exec.Cmd
	gone    chan struct{} // closed when the agent has ended
}

// guest looks whether the node came back whole and then works until the power
// goes. It returns early when something is wrong, or when the host wants no work.
func guest(ctx context.Context) error {
	console, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	n := &node{bin: os.Getenv("LONGSHORE_BIN"), console: console, gone: make(chan struct{})}
	if err := n.live(ctx); err != nil {
		n.violation(ctx, err, "cat", agentLog)
	}
	return nil
}

// violation puts a violation on the console, and the ends of the kernel's and the agent's log.
func (n *node) violation(ctx context.Context, err error, log ...string) {
	n.say(sayViolation, strings.ReplaceAll(err.Error(), "\n", " | "))
	for _, command := range [][]string{{"dmesg"}, log} {
		out, _ := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		_, _ = fmt.Fprintf(n.console, "--- %s, its end:\n%s\n", strings.Join(command, " "), out[max(0, len(out)-30000):])
	}
}

func (n *node) live(ctx context.Context) error {
	params, err := kernelParams()
	if err != nil {
		return err
	}
	want, err := parseWanted(params["longshore.want"])
	if err != nil {
		return err
	}
	if err := mountData(); err != nil {
		return err
	}
	if err := serveRegistry(ctx); err != nil {
		return err
	}
	if err := n.startAgent(ctx); err != nil {
		return err
	}
	if err := n.verify(ctx, want); err != nil {
		return err
	}
	if params["longshore.work"] != "1" {
		return nil
	}
	n.say(sayWorking)
	return n.work(ctx)
}

// say puts a line on the console and waits until it has left the machine, so
// that the host knows of an operation before the agent does.
func (n *node) say(words ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = fmt.Fprintf(n.console, "vm: %s\n", strings.Join(words, " "))
	_ = unix.IoctlSetInt(int(n.console.Fd()), unix.TCSBRK, 1)
}

func kernelParams() (map[string]string, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	params := map[string]string{}
	for _, f := range strings.Fields(string(line)) {
		k, v, _ := strings.Cut(f, "=")
		params[k] = v
	}
	return params, nil
}

func mountData() error {
	if err := hasWriteCache(); err != nil {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dataDev, dataDir, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount the data disk: %w", err)
	}
	return nil
}

func hasWriteCache() error {
	// Without a write cache to lose this test would test nothing.
	cache, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dataDev), "queue/write_cache"))
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(cache)) != "write back" {
		return fmt.Errorf("the data disk has no write cache but says %q", cache)
	}
	return nil
}

func serveRegistry(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", registryAddr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: registry("/longshore/registry"), ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	return nil
}

func (n *node) startAgent(ctx context.Context) error {
	log, err := os.OpenFile(agentLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	n.agent = exec.CommandContext(ctx, filepath.Join(n.bin, "longshore"), "agent", "--root", filepath.Join(dataDir, "root"), "--state", stateDir)
	n.agent.Stdout, n.agent.Stderr = log, log
	if err := n.agent.Start(); err != nil {
		return err
	}
	go func() {
		_ = n.agent.Wait()
		close(n.gone)
	}()
	return n.eventually(func() error {
		_, err := n.cli(ctx, "ps")
		return err
	})
}

// eventually repeats try until it returns nil. It gives up after cliPatience, or when the agent has ended.
func (n *node) eventually(try func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(cliPatience)
	defer deadline.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-n.gone:
			return fmt.Errorf("the agent has ended: %w", err)
		case <-deadline.C:
			return fmt.Errorf("after %v: %w", cliPatience, err)
		case <-tick.C:
		}
	}
}

// cli runs one longshore command and returns its output.
func (n *node) cli(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cliPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(n.bin, "longshore"), args...)
	cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(stateDir, "control.sock"))
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("longshore %s: %w: %s%s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()), tail(stdout.String()))
	}
	return stdout.String(), nil
}

func tail(s string) string { return s[max(0, len(s)-500):] }

// verify asks the agent whether it is well, and then every image: a listed one must run from the
// store, any other must come back by a pull.
func (n *node) verify(ctx context.Context, want wanted) error {
	if out, err := n.cli(ctx, "check"); err != nil {
		return fmt.Errorf("check after the cut: %w: %s", err, out)
	}
	if err := n.verifyContainers(ctx, want); err != nil {
		return err
	}
	list, err := n.cli(ctx, "images", "--json")
	if err != nil {
		return err
	}
	for i := range images {
		ref := imageRef(i)
		listed := strings.Contains(list, ref)
		if there, known := want[i]; known && there != listed {
			return fmt.Errorf("image %d: listed %v, but acknowledged %v before the cut: %s", i, listed, there, list)
		}
		args := []string{"run", "--rm", ref}
		if listed {
			args = []string{"run", "--rm", "--pull", "never", ref}
		} else {
			n.say(sayBegin, opPull, fmt.Sprint(i))
		}
		if _, err := n.cli(ctx, args...); err != nil {
			return fmt.Errorf("image %d, listed %v: %w", i, listed, err)
		}
		n.say(sayHas, fmt.Sprint(i))
	}
	if out, err := n.cli(ctx, "check"); err != nil {
		return fmt.Errorf("check after every image ran: %w: %s", err, out)
	}
	return nil
}

// containerName is the name of a container by its number.
func containerName(i int) string { return fmt.Sprintf("c%d", i-firstContainer) }

// kept is the text that a container has in its layer, on the disk.
const kept = "kept"

// existing returns the states of the containers by name.
func (n *node) existing(ctx context.Context) (map[string]string, error) {
	out, err := n.cli(ctx, "ps", "-a", "--format", "{{.Names}} {{.State}}")
	if err != nil {
		return nil, err
	}
	states := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 {
			states[f[0]] = f[1]
		}
	}
	return states, nil
}

// verifyContainers checks that an acknowledged container exists, is started by its policy and has its
// data, and that a removed one is gone.
func (n *node) verifyContainers(ctx context.Context, want wanted) error {
	states, err := n.existing(ctx)
	if err != nil {
		return err
	}
	for i := firstContainer; i < firstContainer+containers; i++ {
		name := containerName(i)
		_, there := states[name]
		should, known := want[i]
		if known && should != there {
			return fmt.Errorf("container %s: exists %v, but acknowledged %v before the cut: %v", name, there, should, states)
		}
		if !known || !there {
			continue
		}
		if err := n.runs(ctx, name); err != nil {
			return err
		}
		if out, err := n.cli(ctx, "exec", name, "/bin/busybox", "cat", "/kept"); err != nil || strings.TrimSpace(out) != kept {
			return fmt.Errorf("container %s: its file has %q: %w", name, out, err)
		}
		n.say(sayHas, fmt.Sprint(i))
	}
	return nil
}

// runs waits until a container runs.
func (n *node) runs(ctx context.Context, name string) error {
	return n.eventually(func() error {
		states, err := n.existing(ctx)
		if err == nil && states[name] != "running" {
			err = fmt.Errorf("container %s is not started by its policy: %v", name, states)
		}
		return err
	})
}

// work pulls and removes images in two rows and makes and removes containers in
// a third, until the power goes.
func (n *node) work(ctx context.Context) error {
	failed := make(chan error, 4)
	go func() { failed <- n.workImages(ctx, []int{1, 2, 3}) }()
	go func() { failed <- n.workImages(ctx, []int{4, 5}) }()
	go func() { failed <- n.workContainers(ctx) }()
	go func() {
		<-n.gone
		failed <- errors.New("the agent ended in the middle of the work")
	}()
	return <-failed
}

func (n *node) workImages(ctx context.Context, mine []int) error {
	there := map[int]bool{}
	for _, i := range mine {
		there[i] = true // verify left every image there
	}
	for {
		i := mine[rand.IntN(len(mine))] //nolint:gosec // any will do
		op := opPull
		if there[i] {
			op = opRemove
		}
		n.say(sayBegin, op, fmt.Sprint(i))
		if _, err := n.cli(ctx, op, imageRef(i)); err != nil {
			return err
		}
		there[i] = !there[i]
		n.say(sayDid, op, fmt.Sprint(i))
	}
}

func (n *node) workContainers(ctx context.Context) error {
	states, err := n.existing(ctx)
	if err != nil {
		return err
	}
	for {
		i := firstContainer + rand.IntN(containers) //nolint:gosec // any will do
		name, op := containerName(i), opRun
		if _, up := states[name]; up {
			op = opDrop
		}
		n.say(sayBegin, op, fmt.Sprint(i))
		if op == opDrop {
			_, err = n.cli(ctx, "rm", "-f", name)
			delete(states, name)
		} else {
			_, err = n.cli(ctx, "run", "-d", "--restart", "always", "--name", name, imageRef(0), "/bin/busybox", "sleep", "10000")
			if err == nil {
				_, err = n.cli(ctx, "exec", name, "/bin/busybox", "sh", "-c", "echo "+kept+" | busybox dd of=/kept conv=fsync")
			}
			states[name] = "running"
		}
		if err != nil {
			return err
		}
		n.say(sayDid, op, fmt.Sprint(i))
	}
}
