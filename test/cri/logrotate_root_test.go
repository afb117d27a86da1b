package cri

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// rotateEnv is for how many seconds TestRotatedLogs writes.
const rotateEnv = "LONGSHORE_ROTATE_SECONDS"

// TestRotatedLogs: no line of a container that writes 50 MB a second is lost, doubled or torn
// while its log turns as kubelet's do: the file is renamed, the runtime opens it again, and the
// one before is compressed.
func TestRotatedLogs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		seconds := 2
		if s := os.Getenv(rotateEnv); s != "" {
			var err error
			if seconds, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		pod := n.RunPod(t, n.PodConfig("rotate"))
		cfg := nodetest.ContainerConfig("writer", n.Busybox(t), "/writer", logWriterArg, strconv.Itoa(seconds)+"s", strconv.Itoa(50_000_000))
		cfg.Mounts = []*v1.Mount{{HostPath: self, ContainerPath: "/writer", Readonly: true}}
		r := &rotation{t: t, n: n, c: pod.Run(t, cfg), files: make(chan string, 4), checked: make(chan error, 1)}
		go func() { r.checked <- r.check() }()
		r.run()
		if st := r.c.WaitExited(t); st.GetExitCode() != 0 {
			t.Errorf("the writer ended with %d", st.GetExitCode())
		}
		r.pass(r.c.Log)
		close(r.files)
		if err := <-r.checked; err != nil {
			t.Fatal(err)
		}
		said, _, ok := strings.Cut(r.log.last, " in ")
		if lines := fmt.Sprintf("wrote %d lines, ", r.log.lines); !ok || !strings.HasPrefix(said, lines) {
			t.Errorf("the log has %d lines; the writer: %q", r.log.lines, r.log.last)
		}
		t.Logf("the writer %s; the log was turned %d times", r.log.last, r.turned)
		pod.Remove(t)
		n.Check()
	})
}

// rotation turns a container's log and reads the old files.
type rotation struct {
	t       *testing.T
	n       *nodetest.Node
	c       *nodetest.Container
	turned  int
	files   chan string // to be read, in order
	checked chan error
	log     logChecker
}

// run turns the log five times a second until the container has ended.
func (r *rotation) run() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for r.c.Status(r.t).GetState() == v1.ContainerState_CONTAINER_RUNNING {
		<-tick.C
		if turned := r.turn(); turned != "" {
			r.pass(turned)
		}
	}
}

// pass queues a file, unless an earlier one was wrong.
func (r *rotation) pass(path string) {
	select {
	case r.files <- path:
	case err := <-r.checked:
		r.t.Fatal(err)
	}
}

// turn returns where the log is now, "" when the container has just ended.
func (r *rotation) turn() string {
	turned := fmt.Sprintf("%s.%06d", r.c.Log, r.turned)
	if err := os.Rename(r.c.Log, turned); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.n.CRI.ReopenContainerLog(r.t.Context(), &v1.ReopenContainerLogRequest{ContainerId: r.c.ID}); err != nil {
		if r.c.Status(r.t).GetState() == v1.ContainerState_CONTAINER_RUNNING {
			r.t.Fatal(err)
		}
		if err := os.Rename(turned, r.c.Log); err != nil {
			r.t.Fatal(err)
		}
		return ""
	}
	r.turned++
	return turned
}

// check reads the files as they come, every eighth by the way of its compressed
// form, and removes them.
func (r *rotation) check() error {
	for i := 0; ; i++ {
		path, ok := <-r.files
		if !ok {
			return nil
		}
		var err error
		if i%8 == 0 {
			if path, err = compress(path); err != nil {
				return err
			}
		}
		if err = r.read(path); err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
}

func (r *rotation) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if !strings.HasSuffix(path, ".gz") {
		return r.log.check(f)
	}
	zip, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	return r.log.check(zip)
}

// compress does as kubelet: the compressed form is made beside the file, named at
// last, and the file removed.
func compress(path string) (string, error) {
	from, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = from.Close() }()
	to, err := os.Create(path + ".tmp")
	if err != nil {
		return "", err
	}
	defer func() { _ = to.Close() }()
	zip := gzip.NewWriter(to)
	if _, err := io.Copy(zip, from); err != nil {
		return "", err
	}
	if err := zip.Close(); err != nil {
		return "", err
	}
	if err := os.Rename(path+".tmp", path+".gz"); err != nil {
		return "", err
	}
	return path + ".gz", os.Remove(path)
}
