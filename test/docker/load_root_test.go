package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// loadEnv is the size of TestLargeLoad's layer, in GiB.
const loadEnv = "LONGSHORE_TEST_LOAD_GIB"

// layer writes a layer with one file of this size.
func layer(w io.Writer, size int64) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: "big", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	block := make([]byte, 4096) // a file system may compress it
	random := rand.New(rand.NewPCG(1, 2))
	for i := range block {
		block[i] = byte(random.Uint32())
	}
	block = bytes.Repeat(block, 256)
	for at := int64(0); at < size; at += int64(len(block)) {
		if _, err := t.Write(block[:min(size-at, int64(len(block)))]); err != nil {
			return err
		}
	}
	return t.Close()
}

// counter counts the bytes that are written to it.
type counter int64

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// archive writes an archive with the image large:1. Its layer has one file of this size.
func archive(w io.Writer, size int64) error {
	var length counter
	sum := sha256.New()
	if err := layer(io.MultiWriter(&length, sum), size); err != nil {
		return err
	}
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"Cmd":["x"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}`, hex.EncodeToString(sum.Sum(nil)))
	t := tar.NewWriter(w)
	for _, f := range []struct{ name, text string }{{"config.json", config}, {"manifest.json", `[{"Config":"config.json","RepoTags":["large:1"],"Layers":["layer.tar"]}]`}} {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(t, f.text); err != nil {
			return err
		}
	}
	if err := t.WriteHeader(&tar.Header{Name: "layer.tar", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(length)}); err != nil {
		return err
	}
	if err := layer(t, size); err != nil {
		return err
	}
	return t.Close()
}

// TestLargeLoad loads an image of a gigabyte, or of LONGSHORE_TEST_LOAD_GIB, as a stream: the memory of the agent and of its worker stays
// small, others are answered meanwhile, and a load that is cut off leaves nothing.
func TestLargeLoad(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		size := int64(1 << 30)
		if text := os.Getenv(loadEnv); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			size *= int64(n)
		}
		dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err != nil || int64(fs.Bavail)*fs.Bsize < 5*size/2 {
			t.Skipf("the disk has no room for an archive of %d bytes and its files (%v)", size, err)
		}
		socket := filepath.Join(dir, "docker.sock")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[face.docker]\nenabled = true\nsocket = %q\n", socket)})
		t.Cleanup(n.Check)
		s := newSide("ours", socket, nil, nil)
		send := func(ctx context.Context) (string, error) {
			read, write := io.Pipe()
			go func() { _ = write.CloseWithError(archive(write, size)) }()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker/images/load", read)
			if err != nil {
				return "", err
			}
			resp, err := s.http.Do(req)
			if err != nil {
				return "", err
			}
			defer func() { _ = resp.Body.Close() }()
			text, err := io.ReadAll(resp.Body)
			return string(text), err
		}
		before := family(t, n.Pid())
		began := time.Now()
		type answer struct {
			text string
			err  error
		}
		done := make(chan answer, 1)
		go func() {
			text, err := send(t.Context())
			done <- answer{text, err}
		}()
		most, slowest := 0, time.Duration(0)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var got answer
		for running := true; running; {
			select {
			case got = <-done:
				running = false
			case <-tick.C:
				asked := time.Now()
				s.must(t, "GET /containers/json", "")
				slowest, most = max(slowest, time.Since(asked)), max(most, family(t, n.Pid()))
			}
		}
		t.Logf("%d GiB in %s; agent and worker had %d MB, before %d MB; the slowest answer took %s; %d MB on disk",
			size>>30, time.Since(began).Round(time.Millisecond), most>>20, before>>20, slowest, used(n.Root)>>20)
		if got.err != nil || !strings.Contains(got.text, "Loaded image: large:1") {
			t.Errorf("%s, %v", got.text, got.err)
		}
		if most > before+200<<20 || slowest > 5*time.Second {
			t.Error("a large load costs too much")
		}
		s.must(t, "DELETE /images/large:1", "")

		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		if text, err := send(ctx); err == nil {
			t.Errorf("a load that was cut off: %s", text)
		}
		if list := s.must(t, "GET /images/json", ""); strings.TrimSpace(string(list.body)) != "[]" {
			t.Errorf("images after it: %s", list.body)
		}
		roottest.Eventually(t, "its files are removed", func() bool { return used(n.Root) < 100<<20 })
	})
}

// family returns the resident memory of a process and its children, in bytes.
func family(t *testing.T, pid int) (sum int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	pids := []string{strconv.Itoa(pid)}
	for _, name := range tasks {
		text, _ := os.ReadFile(name) // the thread may have ended
		pids = append(pids, strings.Fields(string(text))...)
	}
	for _, p := range pids {
		text, err := os.ReadFile("/proc/" + p + "/status")
		if _, rest, ok := strings.Cut(string(text), "VmRSS:"); err == nil && ok {
			kb, _ := strconv.Atoi(strings.Fields(rest)[0])
			sum += kb << 10
		}
	}
	return sum
}

// used returns the bytes of the files in a directory.
func used(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it was just removed
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
