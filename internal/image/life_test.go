package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestOneLayerWithMappedOwners: the kernel needs at least two lower layers for an overlay with
// mapped owners.
func TestOneLayerWithMappedOwners(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", reg.Push("team/app", "v1", layered(1, 100)), core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ids := []core.IDRange{{Host: 65536, Size: 65536}}
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "shown", Image: img.ID, ReadOnly: true, UIDs: ids, GIDs: ids})
	if err != nil {
		t.Fatal(err)
	}
	lower, ok := strings.CutPrefix(co.Mounts[0].Options[0], "lowerdir=")
	layers := strings.Split(lower, ":")
	if !ok || co.Mounts[0].Type != "overlay" || len(layers) != 2 {
		t.Fatalf("mounts %+v", co.Mounts)
	}
	if left, err := os.ReadDir(layers[1]); err != nil || len(left) != 0 {
		t.Errorf("what is below the layer: %v, %v", left, err)
	}
	// The unmount of one that can be written to must not sync the file system below it.
	co, err = s.Checkout(t.Context(), core.CheckoutRequest{Container: "written", Image: img.ID})
	if err != nil || !slices.Contains(co.Mounts[0].Options, "volatile") {
		t.Errorf("mounts %+v, %v; want a volatile one", co.Mounts, err)
	}
}

func TestNamesPinsAndCheckoutsOutliveTheAgent(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", layered(2, 100))
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Pin: true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "checkouts/c1/upper/made"), "by the container")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	got, err := s.Get(t.Context(), "cri", ref)
	if err != nil || got.ID != img.ID || !got.Pinned {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	again, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID})
	if err != nil || !slices.Equal(again.Mounts[0].Options, first.Mounts[0].Options) {
		t.Errorf("checkout after a restart: %v, %v; was %v", again.Mounts, err, first.Mounts)
	}
	st, err := s.RootStats(t.Context(), "c1")
	if err != nil || st.Inodes.N != 2 || st.Bytes.N == 0 {
		t.Errorf("root stats %+v, %v", st, err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	_, err := image.New(image.Options{Root: dir})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "names.db") {
		t.Errorf("got %v", err)
	}
}

func TestOpenClearsAwayHalfMadeLayers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "l/zz/etc/passwd"), "half")
	write(t, filepath.Join(dir, "trash/old/file"), "old")
	s = open(t, dir)
	if err := s.Close(); err != nil { // Close waits for the trash
		t.Fatal(err)
	}
	for _, gone := range []string{"l/zz", "trash/old"} {
		if _, err := os.Lstat(filepath.Join(dir, gone)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "trash")); len(left) != 0 {
		t.Errorf("trash holds %v", left)
	}
}

func TestMissingLayerIsDataLossAndPullRepairsIt(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", layered(2, 100))
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob(filepath.Join(dir, "l/*"))
	if err != nil || len(dirs) != 2 {
		t.Fatal(dirs, err)
	}
	if err := os.RemoveAll(dirs[0]); err != nil {
		t.Fatal(err)
	}
	req := core.CheckoutRequest{Container: "c1", Image: img.ID}
	if _, err := s.Checkout(t.Context(), req); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "pull it again") {
		t.Errorf("got %v, want DataLoss", err)
	}
	reg.Requests()
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range reg.Requests() {
		if strings.Contains(r, "/blobs/") {
			t.Errorf("fetched %s although the blob is there", r)
		}
	}
	if _, err := s.Checkout(t.Context(), req); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	// With the blob damaged as well, it is fetched again.
	if err := s.Discard(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	b := layered(2, 100).Layers[0].Digest
	blob := filepath.Join(dir, "content/blobs/sha256", b.Encoded())
	if err := os.Chmod(blob, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, blob, "rubbish")
	dirs, _ = filepath.Glob(filepath.Join(dir, "l/*"))
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkout(t.Context(), req); err != nil {
		t.Errorf("after the second repair: %v", err)
	}
}

// held is a registry that sends half of the blob d and then waits.
func held(t *testing.T, reg *imagetest.Registry, d digest.Digest, size int64) (half chan struct{}, ranges func() []string) {
	t.Helper()
	half = make(chan struct{})
	var mu sync.Mutex
	var seen []string
	reg.Intercept(onBlob(d, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Range"))
		first := len(seen) == 1
		mu.Unlock()
		if !first {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&holding{ResponseWriter: w, left: int(size / 2), reached: half, r: r}, r)
	}))
	return half, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

type holding struct {
	http.ResponseWriter
	left    int
	reached chan struct{}
	r       *http.Request
}

func (h *holding) Write(p []byte) (int, error) {
	if len(p) <= h.left {
		h.left -= len(p)
		return h.ResponseWriter.Write(p)
	}
	_, _ = h.ResponseWriter.Write(p[:h.left])
	h.ResponseWriter.(http.Flusher).Flush()
	close(h.reached)
	<-h.r.Context().Done()
	panic(http.ErrAbortHandler)
}

// waitIngest waits until there is an unfinished blob of at least n bytes in dir.
func waitIngest(t *testing.T, dir string, n int64) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		parts, _ := filepath.Glob(filepath.Join(dir, "content/ingest/*/data"))
		for _, p := range parts {
			if fi, err := os.Stat(p); err == nil && fi.Size() >= n {
				return
			}
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("no part of %d bytes in %v", n, parts)
		}
	}
}

func TestPullGoesOnAfterTheWorkerWasKilled(t *testing.T) {
	b := layered(1, 2<<20)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	half, ranges := held(t, reg, b.Layers[0].Digest, b.Layers[0].Size)
	dir := t.TempDir()
	s := open(t, dir)
	result := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
		result <- err
	}()
	<-half
	waitIngest(t, dir, 1<<19)
	killWorker(t)
	if err := <-result; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want Unavailable", err)
	}
	// The agent restarts too, and removes garbage, but not this.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	got := ranges()
	if len(got) != 2 || !strings.HasPrefix(got[1], "bytes=") {
		t.Errorf("ranges %q, want the second to go on", got)
	}
	nothingAfterRemove(t, s, ref)
	if left, _ := filepath.Glob(filepath.Join(dir, "l/*")); len(left) != 0 {
		t.Errorf("layers left: %v", left)
	}
}

// killWorker kills the image workers that are children of this process.
func killWorker(t *testing.T) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, f := range tasks {
		data, _ := os.ReadFile(f)
		for pid := range strings.FieldsSeq(string(data)) {
			cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if !bytes.Contains(cmdline, []byte(image.WorkerArg)) {
				continue
			}
			var n int
			if _, err := fmt.Sscan(pid, &n); err == nil {
				p, err := os.FindProcess(n)
				if err == nil && p.Kill() == nil {
					killed++
				}
			}
		}
	}
	if killed == 0 {
		t.Fatal("no worker found")
	}
}

func TestDamagedPartIsNotTrusted(t *testing.T) {
	b := layered(1, 2<<20)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	half, _ := held(t, reg, b.Layers[0].Digest, b.Layers[0].Size)
	dir := t.TempDir()
	s := open(t, dir)
	result := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
		result <- err
	}()
	<-half
	waitIngest(t, dir, 1<<19)
	killWorker(t)
	<-result
	parts, _ := filepath.Glob(filepath.Join(dir, "content/ingest/*/data"))
	for _, p := range parts {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("not what was sent"), 100_000); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Errorf("over a damaged part: %v", err)
	}
}

func TestIdleWorkerEnds(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", layered(1, 10))
	cfg := image.Default()
	cfg.WorkerIdle = image.Duration(time.Millisecond)
	dir := t.TempDir()
	s := openWith(t, image.Options{Root: dir, Config: cfg})
	for range 3 { // each time another one
		if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); err != nil {
			t.Fatal(err)
		}
		lock, err := os.OpenFile(filepath.Join(dir, "worker.lock"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		waitLock(t, lock) // a living worker has it locked
	}
}

func TestArchives(t *testing.T) {
	one, two := layered(2, 1000), imagetest.Image{Layers: [][]imagetest.File{{{Name: "two"}}}, Compression: imagetest.None, Docker: true}.Build()
	named := map[string]imagetest.Built{"docker.io/library/one:v1": one, "docker.io/library/two:v2": two}
	var oci, docker, nameless bytes.Buffer
	if err := imagetest.WriteOCI(&oci, named); err != nil {
		t.Fatal(err)
	}
	if err := imagetest.WriteDocker(&docker, named); err != nil {
		t.Fatal(err)
	}
	if err := imagetest.WriteOCI(&nameless, map[string]imagetest.Built{"": one}); err != nil {
		t.Fatal(err)
	}
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, archive := range map[string][]byte{
		"oci": oci.Bytes(), "docker": docker.Bytes(), "oci.gz": imagetest.Compress(oci.Bytes(), imagetest.Gzip), "docker.zst": zw.EncodeAll(docker.Bytes(), nil),
	} {
		s := open(t, t.TempDir())
		list, err := s.Import(t.Context(), "cli", bytes.NewReader(archive), core.ImportOptions{})
		if err != nil || len(list) != 2 {
			t.Errorf("%s: %v, %v", name, list, err)
			continue
		}
		for ref, b := range named {
			img, err := s.Get(t.Context(), "cli", ref)
			if err != nil || img.ID != b.ID {
				t.Errorf("%s: %s is %s, %v; want %s", name, ref, img.ID, err, b.ID)
			}
			if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: core.ID("c" + img.ID.Encoded()[:8]), Image: img.ID}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var out bytes.Buffer
		if err := s.Export(t.Context(), "cli", []string{"one:v1", "two:v2"}, &out); err != nil {
			t.Errorf("%s: export: %v", name, err)
		}
		again := open(t, t.TempDir())
		if list, err := again.Import(t.Context(), "cli", &out, core.ImportOptions{}); err != nil || len(list) != 2 {
			t.Errorf("%s: import of the export: %v, %v", name, list, err)
		}
	}
	s := open(t, t.TempDir())
	list, err := s.Import(t.Context(), "cli", bytes.NewReader(nameless.Bytes()), core.ImportOptions{})
	if err != nil || len(list) != 1 || len(list[0].Names) != 0 {
		t.Fatalf("nameless: %+v, %v", list, err)
	}
	if err := s.Tag(t.Context(), "cli", list[0].ID.String(), "now:named"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "cli", "now:named"); err != nil {
		t.Error(err)
	}
	if l, _ := s.List(t.Context(), "cli"); len(l) != 0 {
		t.Errorf("left %v", l)
	}
}

func TestCancelledImportLeavesNothing(t *testing.T) {
	var archive bytes.Buffer
	if err := imagetest.WriteOCI(&archive, map[string]imagetest.Built{"a/b:c": layered(1, 100_000)}); err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	pr, pw := io.Pipe() // sends half and then nothing
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = pw.Write(archive.Bytes()[:archive.Len()/2])
		cancel()
	}()
	if _, err := s.Import(ctx, "cli", pr, core.ImportOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	_ = pw.Close()
	if l, err := s.List(t.Context(), ""); err != nil || len(l) != 0 {
		t.Errorf("left %v, %v", l, err)
	}
	if _, err := s.Import(t.Context(), "cli", &archive, core.ImportOptions{}); err != nil {
		t.Errorf("the whole archive afterwards: %v", err)
	}
}

// TestCollectionBesidePulls lets owners pull, check out, remove and prune the same few images
// concurrently, which share layers: nothing may ever be missing for anybody, and nothing may be
// left at the end.
func TestCollectionBesidePulls(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	shared := []imagetest.File{{Name: "shared", Body: noise(50_000, 99)}}
	var refs []string
	for i := range 4 {
		refs = append(refs, reg.Push("team/app", fmt.Sprintf("v%d", i), imagetest.Image{Layers: [][]imagetest.File{shared, {{Name: fmt.Sprintf("own%d", i)}}}}.Build()))
	}
	dir := t.TempDir()
	s := openWith(t, image.Options{Root: dir, InProcess: true})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			owner := core.Owner(fmt.Sprintf("owner%d", w))
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for n := range 15 {
				ref := refs[r.IntN(len(refs))]
				img, err := s.Pull(t.Context(), owner, ref, core.PullOptions{Always: true})
				if err != nil {
					t.Errorf("%s pull %s: %v", owner, ref, err)
					return
				}
				id := core.ID(fmt.Sprintf("%s-%d", owner, n))
				co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: id, Image: img.ID})
				if err != nil {
					t.Errorf("%s check out %s: %v", owner, ref, err)
					return
				}
				if r.IntN(2) == 0 {
					err = s.Remove(t.Context(), owner, ref)
				} else {
					_, err = s.Prune(t.Context(), owner, nil)
				}
				if err != nil {
					t.Errorf("%s remove: %v", owner, err)
				}
				for opt := range strings.SplitSeq(co.Mounts[0].Options[2], ":") {
					if _, err := os.Stat(strings.TrimPrefix(opt, "lowerdir=")); err != nil {
						t.Errorf("%s: a layer in use has gone: %v", owner, err)
					}
				}
				if err := s.Discard(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := s.Prune(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	u, err := s.Usage(t.Context())
	if err != nil || u.Bytes != 0 || u.Inodes != 0 {
		t.Errorf("left %+v, %v", u, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "l/*")); len(left) != 0 {
		t.Errorf("layers left: %v", left)
	}
}

func BenchmarkCheckout(b *testing.B) {
	s, err := image.New(image.Options{Root: b.TempDir(), InProcess: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	reg := imagetest.NewRegistry(b)
	img, err := s.Pull(b.Context(), "cri", reg.Push("team/app", "v1", layered(8, 1000)), core.PullOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		id := core.ID(fmt.Sprintf("c%d", i))
		if _, err := s.Checkout(b.Context(), core.CheckoutRequest{Container: id, Image: img.ID}); err != nil {
			b.Fatal(err)
		}
		if err := s.Discard(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTheWorkerIsKilledBeforeTheAgent: the process that unpacks images does not have the agent's oom_score_adj.
func TestTheWorkerIsKilledBeforeTheAgent(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	name := reg.Push("lib/app", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "a"}}}}.Build())
	s := open(t, t.TempDir())
	var score string
	_, err := s.Pull(t.Context(), "owner", name, core.PullOptions{Progress: func(core.PullProgress) {
		lists, _ := filepath.Glob("/proc/self/task/*/children")
		for _, list := range lists {
			pids, _ := os.ReadFile(list)
			for pid := range strings.FieldsSeq(string(pids)) {
				args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				if strings.Contains(string(args), image.WorkerArg) {
					b, _ := os.ReadFile("/proc/" + pid + "/oom_score_adj")
					score = strings.TrimSpace(string(b))
				}
			}
		}
	}})
	if err != nil || score != "500" {
		t.Errorf("the worker has %q, want 500 (%v)", score, err)
	}
}
