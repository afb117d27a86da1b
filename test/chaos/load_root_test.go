package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// clients make requests until they are stopped.
type clients struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	// bound is the longest time that one try of a request may take; 0 is no bound.
	bound time.Duration
	// pace multiplies the clients' pauses. Two processors cannot answer all clients at their usual pace.
	pace int

	// repeats is locked for reading while a client repeats a request, and for writing when an upgrade begins.
	repeats sync.RWMutex

	mu       sync.Mutex // guards calls, failures
	calls    map[string]*calls
	failures []string
}

// calls are the requests of one kind.
type calls struct {
	made, again int
	longest     time.Duration    // with the second try
	tries       [2]time.Duration // of the longest one
	buckets     [len(bounds) + 1]int
}

// bounds are those of the buckets of durations.
var bounds = [...]time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}

// loop makes requests of a kind, one after the other, each once more if it fails. Every failure of the second try counts. A client that
// repeats its requests once is made for one upgrade: if the next one began while it repeats a request, that could fail twice, by an upgrade
// each. People do not upgrade a node twice within a second, so beginUpgrade waits for such requests.
func (c *clients) loop(kind string, pause time.Duration, do func() error) {
	c.calls[kind] = &calls{}
	c.group.Go(func() {
		tick := time.NewTicker(pause * time.Duration(c.pace))
		defer tick.Stop()
		for c.ctx.Err() == nil {
			begun := time.Now()
			err := do()
			first := time.Since(begun)
			again := err
			if err != nil {
				c.repeats.RLock()
				again = do()
				c.repeats.RUnlock()
			}
			c.record(kind, [2]time.Duration{first, time.Since(begun) - first}, err, again)
			select {
			case <-tick.C:
			case <-c.ctx.Done():
			}
		}
	})
}

// parts is how many requests a client makes, one after the other, for one of a kind. Each of them may take as long as the bound.
func parts(kind string) int {
	switch kind {
	case "cri, container":
		return 4 // create, start, status, remove
	case "docker, exec":
		return 3 // create, start, inspect
	case "mesos, exec", "cri, images":
		return 2 // launch and wait, pull and remove
	}
	return 1
}

// beginUpgrade returns when no client repeats a request.
func (c *clients) beginUpgrade() {
	c.repeats.Lock()
	defer c.repeats.Unlock()
}

func (c *clients) record(kind string, tries [2]time.Duration, err, again error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[kind]
	k.made++
	took := tries[0] + tries[1]
	if took > k.longest {
		k.longest, k.tries = took, tries
	}
	if bound := c.bound * time.Duration(parts(kind)); bound > 0 && max(tries[0], tries[1]) > bound {
		c.failures = append(c.failures, fmt.Sprintf("%s: tries of %v and %v, which is more than %v; the first one ended with %v", kind, tries[0], tries[1], bound, err))
	}
	i, _ := slices.BinarySearch(bounds[:], took)
	k.buckets[i]++
	if err != nil {
		k.again++
		for _, closed := range []string{"connection refused", "no such file"} {
			if strings.Contains(err.Error(), closed) {
				c.failures = append(c.failures, fmt.Sprintf("%s: a closed port: %v", kind, err))
			}
		}
	}
	if again != nil {
		c.failures = append(c.failures, fmt.Sprintf("%s: %v, and again %v", kind, err, again))
	}
}

// stop ends all clients, and reports their failures and durations.
func (c *clients) stop(t *testing.T) {
	t.Helper()
	c.cancel()
	c.group.Wait()
	for i, f := range c.failures {
		if t.Errorf("%s", f); i > 20 {
			break
		}
	}
	t.Logf("up to %v, and longer:", bounds)
	for _, kind := range slices.Sorted(maps.Keys(c.calls)) {
		k := c.calls[kind]
		t.Logf("%-20s %6d requests, %4d of them twice, longest %6.0f ms (%.0f and %.0f), %v", kind, k.made, k.again, milliseconds(k.longest), milliseconds(k.tries[0]), milliseconds(k.tries[1]), k.buckets)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// connections opens connections to the published port of a container that echoes.
func (u *upgrades) connections() {
	u.t.Helper()
	const port = "18555"
	if out, err := u.n.CLI("run", "-d", "--init=false", "--name", "echo", "-p", port+":80", u.image, "nc", "-ll", "-p", "80", "-e", "cat"); err != nil {
		u.t.Fatalf("%s, %v", out, err)
	}
	for i := range 4 {
		var conn net.Conn
		roottest.Eventually(u.t, "the published port", func() bool {
			var err error
			conn, err = (&net.Dialer{}).DialContext(u.t.Context(), "tcp", "127.0.0.1:"+port)
			return err == nil
		})
		n := 0
		u.clients.loop(fmt.Sprintf("tcp session %d", i), 5*time.Millisecond, func() error {
			n++
			word := fmt.Sprintf("%09d\n", n)
			got := make([]byte, len(word))
			err := conn.SetDeadline(time.Now().Add(roottest.Patience()))
			if err == nil {
				_, err = io.WriteString(conn, word)
			}
			if err == nil {
				_, err = io.ReadFull(conn, got)
			}
			if err == nil && string(got) != word {
				err = fmt.Errorf("%q came back instead of %q", got, word)
			}
			return err
		})
		u.t.Cleanup(func() { _ = conn.Close() })
	}
}

// requests starts the clients of all faces.
func (u *upgrades) requests() {
	u.t.Helper()
	ctx := u.t.Context()
	cri := filepath.Join(u.n.State, "cri.sock")
	u.clients.loop("cri, new connection", 25*time.Millisecond, func() error {
		conn, err := grpc.NewClient("unix://"+cri, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
		return err
	})
	own, err := grpc.NewClient("unix://"+cri, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = own.Close() })
	u.n.CRI, u.n.Images = runtimeapi.NewRuntimeServiceClient(own), runtimeapi.NewImageServiceClient(own) // with gRPC's usual patience
	u.clients.loop("cri, list", 25*time.Millisecond, func() error {
		r, err := u.n.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err == nil && len(r.GetContainers()) == 0 {
			err = fmt.Errorf("no container")
		}
		return err
	})
	u.clients.loop("cri, images", 200*time.Millisecond, func() error {
		image := &runtimeapi.ImageSpec{Image: u.fresh()}
		if _, err := u.n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image}); err != nil {
			return err
		}
		_, err := u.n.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
		return err
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(u.n.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = conn.Close() })
	control := longshorev1.NewContainersClient(conn)
	u.clients.loop("control, list", 25*time.Millisecond, func() error {
		_, err := control.ListContainers(ctx, &longshorev1.ListContainersRequest{})
		return err
	})
	u.clients.loop("docker, list", 25*time.Millisecond, func() error { return u.docker.call("GET", "/containers/json", nil, nil) })
	mesos := u.drivers["mesos"].(*byMesos)
	u.clients.loop("mesos, containers", 25*time.Millisecond, func() error {
		_, err := mesos.post("GET_CONTAINERS", object{}, http.StatusOK)
		return err
	})
	for owner, d := range u.drivers {
		i := slices.IndexFunc(u.tasks, func(k *task) bool { return k.owner == owner })
		if i < 0 {
			continue
		}
		name := u.tasks[i].name
		if owner == "swarm" { // its manager has no call for a program in a container
			d, name = &byCLI{m: u.matrix, force: true}, u.tasks[i].id
		}
		u.clients.loop(owner+", exec", 100*time.Millisecond, func() error {
			code, err := d.exec(name, "exit 9")
			if err == nil && code != 9 {
				err = fmt.Errorf("the program ended with %d, want 9", code)
			}
			return err
		})
	}
	u.clients.loop("cri, container", 100*time.Millisecond, u.short())
}

// short returns a request that makes a container, and starts, awaits and removes it. If it fails in between, the next request removes
// the container.
func (u *upgrades) short() func() error {
	attempt, left := uint32(0), ""
	ctx := u.t.Context()
	return func() error {
		attempt++
		if left != "" {
			if _, err := u.n.CRI.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: left}); err != nil {
				return err
			}
			left = ""
		}
		cfg := nodetest.ContainerConfig("short", u.image, "/bin/sh", "-c", "exit 5")
		cfg.Metadata.Attempt = attempt
		r, err := u.n.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: u.pod.ID, Config: cfg, SandboxConfig: u.pod.Config})
		if err != nil {
			return err
		}
		left = r.GetContainerId()
		if _, err := u.n.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: left}); err != nil {
			return err
		}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ; ; <-tick.C {
			st, err := u.n.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: left})
			if err != nil {
				return err
			}
			if st.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				continue
			}
			if code := st.GetStatus().GetExitCode(); code != 5 {
				return fmt.Errorf("a short container ended with %d", code)
			}
			_, err = u.n.CRI.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: left})
			if err == nil {
				left = ""
			}
			return err
		}
	}
}

// follower reads a growing file with numbered lines, or several with a number after their names.
type follower struct {
	name, path string
	numbered   int // of the present file; -1 for a file without
	file       *os.File
	at         int64  // in the present file
	rest       []byte // an incomplete line of the file
	piece      []byte // an incomplete line of the output: the keeper writes the first part of a line if the rest is late
	last, end  int64  // the numbers of the last line, and in the end
}

// read reads all new lines, and frees their blocks on the disk.
func (f *follower) read(t *testing.T) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for {
		if f.file == nil {
			file, err := os.OpenFile(f.current(), os.O_RDWR, 0)
			if err != nil {
				return
			}
			f.file, f.at = file, 0
		}
		n, _ := f.file.ReadAt(buf, f.at)
		f.lines(t, buf[:n])
		if n == 0 {
			if _, err := os.Stat(f.following()); f.numbered < 0 || err != nil {
				return
			}
			_ = f.file.Close()
			f.file = nil
			f.numbered++
			continue
		}
		_ = unix.Fallocate(int(f.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, f.at, int64(n))
		f.at += int64(n)
	}
}

func (f *follower) current() string {
	if f.numbered < 0 {
		return f.path
	}
	return f.path + "." + strconv.Itoa(f.numbered)
}

func (f *follower) following() string { return f.path + "." + strconv.Itoa(f.numbered+1) }

// lines compares the numbers of lines.
func (f *follower) lines(t *testing.T, b []byte) {
	t.Helper()
	f.rest = append(f.rest, b...)
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole {
			f.rest = slices.Clone(f.rest)
			return
		}
		f.rest = rest
		piece, whole := content(line)
		if f.piece = append(f.piece, piece...); !whole {
			continue
		}
		_, text, found := bytes.Cut(f.piece, []byte("@"))
		f.piece = f.piece[:0]
		if !found {
			continue
		}
		if after, isEnd := bytes.CutPrefix(text, []byte("END ")); isEnd {
			_, _ = fmt.Sscan(string(after), &f.end)
			continue
		}
		number, pad, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(number), 10, 64)
		if err != nil || n != f.last+1 || !bytes.HasPrefix(pad, []byte(linePad)) {
			t.Errorf("%s: line %d of the output is %.60q of %d bytes", f.name, f.last+1, text, len(text))
		}
		f.last = n
	}
}

// content returns the output in a line of a log, and whether a line of the output ends there.
func content(line []byte) (text []byte, whole bool) {
	if after, ok := bytes.CutPrefix(line, []byte(`{"log":"`)); ok { // as Docker writes it
		text, _, _ = bytes.Cut(after, []byte(`"`)) // this output has no quotes
		return bytes.CutSuffix(text, []byte(`\n`))
	}
	for _, stream := range []string{" stdout ", " stderr "} { // as CRI has it
		if i := bytes.Index(line[:min(len(line), 64)], []byte(stream)); i >= 0 {
			tag, text, _ := bytes.Cut(line[i+len(stream):], []byte(" "))
			return text, string(tag) != "P"
		}
	}
	return line, true
}

// logPath returns the file with the output of a container.
func (u *upgrades) logPath(k *task) string {
	u.t.Helper()
	k.log.numbered = -1
	switch k.owner {
	case "cri":
		return u.drivers["cri"].(*byCRI).ids[k.name].Log
	case "mesos":
		return filepath.Join(u.n.Root, "mesos", "containers", k.name, "stdout")
	case "nomad":
		k.log.numbered = 0
		return u.drivers["nomad"].(*byNomad).dir("alloc", "logs", k.name+".stdout")
	}
	out, err := u.n.CLI("inspect", k.id)
	if err != nil {
		u.t.Fatal(err)
	}
	var docs []any
	if err := json.Unmarshal([]byte(out), &docs); err != nil {
		u.t.Fatalf("%v: %s", err, out)
	}
	if path := sinkPath(docs); path != "" {
		return path
	}
	u.t.Fatalf("no log of %s: %s", k.name, out)
	return ""
}

// sinkPath finds the first path of a log in a document.
func sinkPath(v any) string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if s := sinkPath(e); s != "" {
				return s
			}
		}
	case map[string]any:
		for key, e := range v {
			if s, ok := e.(string); ok && key == "LogPath" && s != "" {
				return s
			}
			if s := sinkPath(e); s != "" {
				return s
			}
		}
	}
	return ""
}
