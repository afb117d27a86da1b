package fromroot_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/fromroot"
)

// tarOf returns a tar with these entries. Names that end with a slash are directories.
func tarOf(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: 1}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestDetectTellsArchivesApart checks first entries as real tools write them.
func TestDetectTellsArchivesApart(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, tc := range []struct {
		names []string
		want  fromroot.Kind
	}{
		{[]string{"bin/", "bin/sh"}, fromroot.Root},
		{[]string{"./", "./etc/passwd"}, fromroot.Root},
		{[]string{".dockerenv", "manifest.json"}, fromroot.Root},
		{[]string{"/hello"}, fromroot.Root},
		{[]string{"blobs/", "index.json"}, fromroot.Images},
		{[]string{"oci-layout"}, fromroot.Images},
		{[]string{"./", "./index.json"}, fromroot.Images},
		{[]string{"manifest.json"}, fromroot.Images},
		{[]string{id + "/", id + "/layer.tar"}, fromroot.Images},
		{[]string{id + ".tar"}, fromroot.Images},
		{[]string{id + ".json"}, fromroot.Images},
		{[]string{"sha256:" + id, "manifest.json"}, fromroot.Images},
		{[]string{id + ".tar.gz", "config.json"}, fromroot.Images},
		{nil, fromroot.Unknown},
		{[]string{"./"}, fromroot.Unknown},
	} {
		plain := tarOf(t, tc.names...)
		for _, head := range [][]byte{plain, zipped(t, plain)} {
			if got := fromroot.Detect(head); got != tc.want {
				t.Errorf("%q: %d, want %d", tc.names, got, tc.want)
			}
		}
	}
	for _, head := range [][]byte{nil, []byte("no tar"), []byte("\xfd7zXZ\x00"), []byte("\x1f\x8b"), bytes.Repeat([]byte("x"), 1024)} {
		if got := fromroot.Detect(head); got != fromroot.Unknown {
			t.Errorf("%q: %d", head, got)
		}
	}
}

// TestDetectReadsLargeBlocks checks a tar with a first block of bzip2 that is longer than 256 kB.
func TestDetectReadsLargeBlocks(t *testing.T) {
	program, err := exec.LookPath("bzip2")
	if err != nil {
		t.Skip("bzip2 is not installed")
	}
	large := make([]byte, 1200<<10)
	_, _ = rand.Read(large) // it never fails
	for name, want := range map[string]fromroot.Kind{"./etc/passwd": fromroot.Root, "oci-layout": fromroot.Images} {
		var plain, packed bytes.Buffer
		w := tar.NewWriter(&plain)
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(large))})
		if _, werr := w.Write(large); err != nil || werr != nil || w.Close() != nil {
			t.Fatal(err, werr)
		}
		cmd := exec.CommandContext(t.Context(), program, "-9")
		cmd.Stdin, cmd.Stdout = bytes.NewReader(plain.Bytes()), &packed
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		tarred := bytes.Clone(plain.Bytes())
		if got := fromroot.Detect(packed.Bytes()[:fromroot.HeadBytes]); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
		for form, archive := range map[string][]byte{"packed": packed.Bytes(), "plain": tarred} {
			if got, err := io.ReadAll(fromroot.ForAgent(bufio.NewReader(bytes.NewReader(archive)))); err != nil || !bytes.Equal(got, tarred) {
				t.Errorf("%s, %s: the agent gets %d bytes of %d, %v", name, form, len(got), len(tarred), err)
			}
		}
	}
}

// TestArchive checks the archive's config and layer.
func TestArchive(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	root := tarOf(t, "bin/", "bin/sh")
	var out bytes.Buffer
	image := fromroot.Image{Name: "example.org/made:1", Message: "from a test", Changes: []string{`CMD ["sh"]`, "ENV A=1"}, Created: time.Unix(1_800_000_000, 0).UTC()}
	if err := fromroot.Archive(&out, bytes.NewReader(zipped(t, root)), file, image); err != nil {
		t.Fatal(err)
	}
	blobs := map[string][]byte{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if blobs[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index ocispec.Index
	var manifest ocispec.Manifest
	var config ocispec.Image
	read := func(name string, to any) {
		t.Helper()
		if err := json.Unmarshal(blobs[name], to); err != nil {
			t.Fatal(name, err)
		}
	}
	read("index.json", &index)
	read("blobs/sha256/"+index.Manifests[0].Digest.Encoded(), &manifest)
	read("blobs/sha256/"+manifest.Config.Digest.Encoded(), &config)
	if index.Manifests[0].Annotations["io.containerd.image.name"] != image.Name || len(config.Config.Cmd) != 1 || config.Config.Env[0] != "A=1" ||
		config.History[0].Comment != image.Message || config.OS != "linux" || config.Architecture == "" {
		t.Errorf("%+v\n%+v", index, config)
	}
	layer, err := gzip.NewReader(bytes.NewReader(blobs["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(layer); err != nil || !bytes.Equal(got, root) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(root))
	}
	image.Changes = []string{"RUN true"}
	if err := fromroot.Archive(io.Discard, strings.NewReader("never read"), file, image); err == nil || !strings.Contains(err.Error(), "RUN") {
		t.Errorf("an instruction that needs a build: %v", err)
	}
	image.Changes = nil
	if err := fromroot.Archive(io.Discard, strings.NewReader("\xfd7zXZ\x00"), file, image); err == nil || !strings.Contains(err.Error(), "xz -dc") {
		t.Errorf("xz: %v", err)
	}
}

// FuzzDetect checks that no beginning of a file makes it fail or hang.
func FuzzDetect(f *testing.F) {
	f.Add(tarOf(f, "bin/sh"))
	f.Add(zipped(f, tarOf(f, "manifest.json")))
	f.Add([]byte("BZh91AY&SY"))
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if kind := fromroot.Detect(head); kind < fromroot.Unknown || kind > fromroot.Root {
			t.Error(kind)
		}
	})
}
