package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// stored returns the bytes on the disk below a directory. A file with several names counts once.
func stored(t *testing.T, dir string) (sum int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// repeated returns so many bytes, more than the machine may have of memory: they are 16 MiB, mapped again and again. No block is empty.
func repeated(t *testing.T, size int) []byte {
	t.Helper()
	const piece = 16 << 20
	fd, err := unix.MemfdCreate("piece", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "piece")
	defer f.Close()
	content := make([]byte, piece)
	for i := 0; i < piece; i += 4096 {
		content[i] = byte(i/4096*2 + 1)
	}
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	length := (size + piece - 1) / piece * piece
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.MunmapPtr(start, uintptr(length)) })
	for at := 0; at < length; at += piece {
		if _, err := unix.MmapPtr(fd, 0, unsafe.Add(start, at), piece, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
	}
	return unsafe.Slice((*byte)(start), length)[:size]
}

// TestABigArtifactIsStoredOnceAndMountedAtOnce: a mount does not read the content, so a container with an artifact of
// LONGSHORE_ARTIFACT_MIB takes as long to create as one with a small artifact. The test logs the times.
func TestABigArtifactIsStoredOnceAndMountedAtOnce(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		size := 32
		if text := os.Getenv("LONGSHORE_ARTIFACT_MIB"); text != "" {
			var err error
			if size, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
		body := repeated(t, size<<20)
		n := nodetest.Start(t, nodetest.Options{})
		reg := imagetest.NewRegistry(t)
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skip(err)
		}
		image := reg.Push("library/busybox", "latest", built)
		artifact := func(name string, body []byte) string {
			return reg.Push("team/"+name, "v1", imagetest.Artifact{Type: "application/vnd.example", Files: []imagetest.ArtifactFile{{Title: "file", Body: body}}}.Build())
		}
		small, big := artifact("small", []byte("small\n")), artifact("big", body)
		for _, ref := range []string{image, small, big} {
			if out, err := n.CLI("pull", "-q", ref); err != nil {
				t.Fatalf("%s, %v", out, err)
			}
			if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
		}
		if got := stored(t, filepath.Join(n.Dir, "root")); got < int64(len(body)) || got > int64(len(body))*5/4+16<<20 {
			t.Errorf("the node's root has %d bytes, the artifact %d", got, len(body))
		}
		pod := n.RunPod(t, n.PodConfig("artifacts"))
		took := map[string][]time.Duration{}
		for i := range 11 {
			for name, ref := range map[string]string{"small": small, "big": big, "none": ""} {
				key := name + strconv.Itoa(i)
				cfg := nodetest.ContainerConfig(key, image, "/bin/sleep", "1000")
				args := []string{"create", "--name", "c" + key, "--network", "none"}
				if ref != "" {
					cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/model", Readonly: true, Image: &runtimeapi.ImageSpec{Image: ref}}}
					args = append(args, "--mount", "type=artifact,src="+ref+",dst=/model")
				}
				start := time.Now()
				pod.Create(t, cfg)
				took["CRI, "+name] = append(took["CRI, "+name], time.Since(start))
				start = time.Now()
				if out, err := n.CLI(append(args, image, "/bin/sleep", "1000")...); err != nil {
					t.Fatalf("%s, %v", out, err)
				}
				took["command line, "+name] = append(took["command line, "+name], time.Since(start))
			}
		}
		for what, list := range took {
			slices.Sort(list)
			t.Logf("%-22s create: median %v, longest %v", what, list[len(list)/2].Round(100*time.Microsecond), list[len(list)-1].Round(100*time.Microsecond))
		}
		out, err := n.CLI("run", "--rm", "--mount", "type=artifact,src="+big+",dst=/model", image, "/bin/sh", "-c", "stat -c %s /model/file || stat -c %s /model")
		if err != nil || !strings.Contains(out, strconv.Itoa(len(body))) {
			t.Errorf("%q, %v", out, err)
		}
		n.Check()
	})
}
