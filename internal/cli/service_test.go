package cli_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/cli"
	"github.com/longshore/longshore/internal/roottest"
)

// notifications receives the messages of a service to systemd.
type notifications chan string

// listenForNotifications makes this process a service of the test.
func listenForNotifications(t *testing.T) notifications {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	to := make(notifications, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			to <- string(buf[:n])
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	t.Setenv("NOTIFY_SOCKET", path)
	return to
}

// next returns the next message that contains a word.
func (n notifications) next(t *testing.T, word string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	for {
		select {
		case m := <-n:
			if strings.Contains(m, word) {
				return m
			}
			t.Logf("before %s: %q", word, m)
		case <-ctx.Done():
			t.Fatalf("no message with %s came", word)
		}
	}
}

// lockedBuffer collects the output of a command that still runs.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// command is a command that runs in this process.
type command struct {
	out    lockedBuffer
	status chan int
}

// begin starts a command.
func begin(t *testing.T, socket string, args ...string) *command {
	t.Helper()
	c := &command{status: make(chan int, 1)}
	go func() {
		c.status <- cli.Main(t.Context(), cli.Options{
			Args: append([]string{"--socket", socket}, args...), Stdin: strings.NewReader(""), Stdout: &c.out, Stderr: &c.out, Version: "1.2.3",
			Getenv: func(string) string { return "" },
		})
	}()
	return c
}

// do runs a command to its end.
func do(t *testing.T, socket string, args ...string) (int, string) {
	t.Helper()
	c := begin(t, socket, args...)
	return <-c.status, c.out.String()
}

// TestServiceIsReadyWhenItRunsOrIsHealthy follows services from their start to SIGTERM.
func TestServiceIsReadyWhenItRunsOrIsHealthy(t *testing.T) {
	_, socket := node(t)
	for _, s := range []struct {
		name, waits string
		args        []string
	}{
		{"run, without a health check", "", []string{"run", "--rm", "--name", "web", "--replace", "--sdnotify", "healthy", "busybox"}},
		{"run, with one", "not healthy yet", []string{"run", "--rm", "--name", "web", "--replace", "--sdnotify", "healthy", "--health-cmd", "true", "--health-interval", "50ms", "busybox"}},
		{"run, ready when it runs", "", []string{"run", "--name", "web", "--sdnotify", "conmon", "--health-cmd", "sick", "--health-interval", "1h", "busybox"}},
		{"start of the container that ended", "", []string{"start", "--sdnotify=running", "web"}},
		{"start of one that runs", "", []string{"start", "--sdnotify=running", "web"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			if s.name == "start of one that runs" {
				if status, out := do(t, socket, "start", "web"); status != 0 {
					t.Fatal(out)
				}
			}
			n := listenForNotifications(t)
			c := begin(t, socket, s.args...)
			if s.waits != "" {
				n.next(t, s.waits)
			}
			n.next(t, "READY=1")
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			n.next(t, "STOPPING=1")
			if status := <-c.status; status != 143 {
				t.Errorf("it ended with %d: %s", status, c.out.String())
			}
		})
	}
	if _, out := do(t, socket, "ps", "-a", "--format", "{{.Names}} {{.State}}"); out != "web exited\n" {
		t.Errorf("left are %q", out)
	}
}

// TestServiceEndsWithTheProgramsStatus checks the output and the exit status of services, with and without --rm.
func TestServiceEndsWithTheProgramsStatus(t *testing.T) {
	_, socket := node(t)
	for _, args := range [][]string{
		{"run", "--rm", "--sdnotify", "healthy", "busybox", "both"},
		{"run", "--name", "kept", "--sdnotify", "healthy", "busybox", "both"},
		{"start", "--sdnotify", "healthy", "kept"},
	} {
		status, out := do(t, socket, args...)
		if status != 7 || !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") {
			t.Errorf("%v: %d, %q", args, status, out)
		}
	}
	if status, out := do(t, socket, "run", "--rm", "--sdnotify", "healthy", "busybox", "missing"); status != 127 {
		t.Errorf("a missing program: %d, %s", status, out)
	}
}

// TestReplaceAndIgnoreTakeWholeNames checks that no command of a unit changes a container by the beginning of its ID.
func TestReplaceAndIgnoreTakeWholeNames(t *testing.T) {
	_, socket := node(t)
	status, id := do(t, socket, "run", "-d", "--name", "other", "busybox")
	if status != 0 {
		t.Fatal(id)
	}
	prefix := id[:6]
	for _, args := range [][]string{
		{"stop", "--ignore", prefix},
		{"rm", "-f", "-v", "-i", prefix},
		{"run", "--rm", "--replace", "--name", prefix, "busybox", "echo", "new"},
	} {
		if status, out := do(t, socket, args...); status != 0 {
			t.Errorf("%v: %d, %s", args, status, out)
		}
	}
	if status, out := do(t, socket, "start", "--sdnotify=running", prefix); status != 125 || !strings.Contains(out, "not found") {
		t.Errorf("start by the beginning of an ID: %d, %s", status, out)
	}
	if _, out := do(t, socket, "ps", "--format", "{{.Names}} {{.State}}"); out != "other running\n" {
		t.Errorf("left are %q", out)
	}
	if status, out := do(t, socket, "run", "-d", "--replace", "--name", "other", "busybox"); status != 0 || out == id {
		t.Errorf("replaced: %d, %s", status, out)
	}
	for _, name := range []string{"other", "other"} {
		if status, out := do(t, socket, "rm", "--force", "--ignore", name); status != 0 || out != "" {
			t.Errorf("rm: %d, %s", status, out)
		}
	}
}

// TestUnitCompletesNames checks that a shell completes the container of unit.
func TestUnitCompletesNames(t *testing.T) {
	_, socket := node(t)
	if status, out := do(t, socket, "create", "--name", "web", "busybox"); status != 0 {
		t.Fatal(out)
	}
	if _, out := do(t, socket, "__complete", "unit", "w"); !strings.HasPrefix(out, "web\n") {
		t.Errorf("%q", out)
	}
}
