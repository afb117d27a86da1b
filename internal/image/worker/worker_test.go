package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/trust"
)

// nobody is an Agent that accepts everything.
type nobody struct{}

func (nobody) Admit(context.Context, trust.Claim) error { return nil }

func (nobody) Lease(context.Context, []digest.Digest, []digest.Digest) (map[digest.Digest]Place, error) {
	return map[digest.Digest]Place{}, nil
}
func (nobody) Progress(core.PullProgress) {}

func newWorker(tb testing.TB) *Worker {
	tb.Helper()
	return workerAt(tb, tb.TempDir())
}

// fuzzed returns a worker for one input, in memory if there is a tmpfs, because an import is
// synced to disk.
func fuzzed(tb testing.TB) *Worker {
	tb.Helper()
	root, err := os.MkdirTemp("/dev/shm", "longshore-fuzz-")
	if err != nil {
		root = tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(root) })
	return workerAt(tb, root)
}

func workerAt(tb testing.TB, root string) *Worker {
	tb.Helper()
	for _, dir := range []string{LayerDir, SumsDir, ContentDir + "/blobs/sha256", ContentDir + "/ingest"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	w, err := New(root, Settings{})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// TestFollowsTheIngest checks our assumption about where the content store has its unfinished
// blobs.
func TestFollowsTheIngest(t *testing.T) {
	w := newWorker(t)
	desc := ocispec.Descriptor{Digest: digest.FromString("whole"), Size: 5}
	cw, err := content.OpenWriter(t.Context(), w.store, content.WithRef(ingestRef(desc.Digest)), content.WithDescriptor(desc))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cw.Write([]byte("who")); err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(w.ingestFile(ingestRef(desc.Digest))); err != nil || string(body) != "who" {
		t.Errorf("ingest holds %q, %v", body, err)
	}
	if _, err := cw.Write([]byte("le")); err != nil {
		t.Fatal(err)
	}
	if err := cw.Commit(t.Context(), desc.Size, desc.Digest); err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(w.blobFile(desc.Digest)); err != nil || string(body) != "whole" {
		t.Errorf("blob holds %q, %v", body, err)
	}
}

func TestManifestsThatAreNoImages(t *testing.T) {
	d := digest.FromString("x").String()
	nested := `{"schemaVersion":2,"manifests":[]}`
	layers := strings.Repeat(`{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"`+d+`","size":1},`, maxLayers+1)
	for name, tc := range map[string]struct {
		doc string
		is  func(error) bool
	}{
		"not json":       {`nonsense`, errdefs.IsInvalidArgument},
		"schema 1":       {`{"schemaVersion":1,"fsLayers":[{"blobSum":"x"}]}`, errdefs.IsNotImplemented},
		"no config":      {`{"schemaVersion":2}`, errdefs.IsInvalidArgument},
		"empty index":    {`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`, errdefs.IsNotFound},
		"absent":         {nested, errdefs.IsInvalidArgument},
		"encrypted":      {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip+encrypted","digest":"` + d + `","size":1}]}`, errdefs.IsNotImplemented},
		"no layer type":  {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},"layers":[{"mediaType":"text/plain","digest":"` + d + `","size":1}]}`, errdefs.IsNotImplemented},
		"bad digest":     {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"../../etc/passwd","size":1}]}`, errdefs.IsInvalidArgument},
		"too many":       {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},"layers":[` + strings.TrimSuffix(layers, ",") + `]}`, errdefs.IsInvalidArgument},
		"config missing": {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},"layers":[]}`, errdefs.IsInvalidArgument},
		"config size":    {`{"schemaVersion":2,"config":{"digest":"` + d + `","size":99999999999},"layers":[]}`, errdefs.IsInvalidArgument},
		"config digest":  {`{"schemaVersion":2,"config":{"digest":"sha256:zz","size":1},"layers":[]}`, errdefs.IsInvalidArgument},
	} {
		if err := tryManifest(t, newWorker(t), []byte(tc.doc)); !tc.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func tryManifest(tb testing.TB, w *Worker, doc []byte) error {
	tb.Helper()
	desc := ocispec.Descriptor{Digest: digest.FromBytes(doc), Size: int64(len(doc))}
	if err := w.write(tb.Context(), desc, doc); err != nil {
		tb.Fatal(err)
	}
	_, err := (&source{w: w, agent: nobody{}}).image(tb.Context(), desc, platforms.Default(), nil)
	return err
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0},"layers":[]}`))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:00","platform":{"os":"linux","architecture":"amd64"}},{"digest":"","annotations":{"a":"b"}}]}`))
	w := newWorker(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 && tryManifest(t, w, data) == nil {
			t.Error("an image without a config")
		}
	})
}

// TestDeclaredVolumesAreBounded: an image that declares more than MaxVolumes is refused by its number.
func TestDeclaredVolumesAreBounded(t *testing.T) {
	config := func(n int) []byte {
		img := ocispec.Image{Config: ocispec.ImageConfig{Volumes: map[string]struct{}{}}}
		for i := range n {
			img.Config.Volumes[fmt.Sprint("/v", i)] = struct{}{}
		}
		b, err := json.Marshal(img)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if _, err := ParseConfig(config(MaxVolumes), 0); err != nil {
		t.Errorf("as many as are allowed: %v", err)
	}
	if _, err := ParseConfig(config(MaxVolumes+1), 0); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "129 volumes") {
		t.Errorf("one more: %v", err)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]},"config":{"Env":["a=b"]}}`), 1)
	f.Add([]byte(`{"rootfs":{"diff_ids":["../../x"]}}`), 1)
	f.Fuzz(func(t *testing.T, data []byte, layers int) {
		diffs, err := ParseConfig(data, layers)
		if err != nil {
			return
		}
		if len(diffs) != layers {
			t.Errorf("%d diff IDs for %d layers", len(diffs), layers)
		}
		for _, d := range diffs {
			if strings.ContainsAny(d.String(), "/.") {
				t.Errorf("diff ID %q", d)
			}
		}
	})
}

func pair(tb testing.TB) (a, b *Conn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var conns []*Conn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := NewConn(f)
		if err != nil {
			tb.Fatal(err)
		}
		_ = f.Close()
		tb.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns[0], conns[1]
}

func TestMessagesCarryFilesAndErrors(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	big := make([]digest.Digest, 2000)
	for i := range big {
		big[i] = digest.FromString(fmt.Sprint(i))
	}
	go func() {
		_ = a.Send(Message{Job: 1, Import: true}, r)
		_ = a.Send(Message{Job: 2, Ask: &Ask{Seq: 7, Blobs: big}}, nil)
		_ = r.Close()
		_ = a.Close()
	}()
	m, file, err := b.Receive()
	if err != nil || m.Job != 1 || !m.Import || file == nil {
		t.Fatalf("%+v, %v, %v", m, file, err)
	}
	go func() { _, _ = io.WriteString(w, "through the pipe"); _ = w.Close() }()
	if body, err := io.ReadAll(file); err != nil || string(body) != "through the pipe" {
		t.Errorf("file says %q, %v", body, err)
	}
	_ = file.Close()
	m, file, err = b.Receive()
	if err != nil || file != nil || m.Ask == nil || len(m.Ask.Blobs) != len(big) {
		t.Fatalf("second message: %v, %v", file, err)
	}
	if _, _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	for _, class := range classes() {
		err := ToWire(fmt.Errorf("pull x: %w: details", class)).Unpack()
		if !errors.Is(err, class) || !strings.Contains(err.Error(), "details") {
			t.Errorf("class %v came back as %v", class, err)
		}
	}
	if ToWire(nil).Unpack() != nil {
		t.Error("no error became one")
	}
}

func TestOversizedMessageIsRefused(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(Message{Pull: &PullJob{Ref: strings.Repeat("x", MaxMessage)}}, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("send: %v", err)
	}
	go func() { _, _ = a.c.Write([]byte{0xff, 0xff, 0xff, 0xff}) }()
	if _, _, err := b.Receive(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("receive: %v", err)
	}
}

func FuzzReceive(f *testing.F) {
	msg, err := json.Marshal(Message{Job: 1, Done: &Done{Err: &WireError{Class: "x", Text: "y"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte{0, 0, 0, byte(len(msg))}, msg...))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := pair(t)
		go func() { _, _ = io.Copy(a.c, bytes.NewReader(data)); _ = a.Close() }()
		for {
			m, file, err := b.Receive()
			if err != nil {
				return
			}
			if file != nil {
				t.Fatal("a file from nowhere")
			}
			if m.Done != nil {
				_ = m.Done.Err.Unpack()
			}
		}
	})
}
