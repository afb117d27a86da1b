package node

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

type intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler)

func answer(code int, body string) intercept {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// onBlob calls f for a blob's requests.
func onBlob(d digest.Digest, f intercept) intercept {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/blobs/"+d.String()) {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// promise sends the header of size bytes and then does as end says.
func promise(size int64, end func(r *http.Request)) intercept {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		end(r)
	}
}

// TestARegistryThatFailsIsTold: for a registry that answers badly or not at all, the error
// names it and its answer, and the next pull goes through.
func TestARegistryThatFailsIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[images]\nretries = 1\nstall_timeout = \"1s\"\n"})
		built := tiny()
		layer := built.Layers[0]
		for name, tc := range map[string]struct {
			does intercept
			code codes.Code
			says []string
		}{
			"401": {answer(401, `{"errors":[{"code":"UNAUTHORIZED","message":"log in first"}]}`), codes.Unauthenticated, []string{"401", "log in first"}},
			"429": {answer(429, `{"details":"slow down"}`), codes.Unavailable, []string{"429"}},
			"500": {answer(500, ""), codes.Unavailable, []string{"500 Internal Server Error"}},
			"stalls": {
				onBlob(layer.Digest, promise(layer.Size, func(r *http.Request) { <-r.Context().Done() })), codes.Unavailable, []string{layer.Digest.String(), "nothing received for 1s"},
			},
			"truncates": {
				onBlob(layer.Digest, promise(layer.Size, func(*http.Request) { panic(http.ErrAbortHandler) })), codes.Unavailable, []string{layer.Digest.String(), "ended early"},
			},
			"another size": {onBlob(layer.Digest, answer(200, "short")), codes.DataLoss, []string{layer.Digest.String(), "5 bytes"}},
			"other bytes": {
				onBlob(layer.Digest, answer(200, strings.Repeat("x", int(layer.Size)))), codes.DataLoss, []string{layer.Digest.String()},
			},
		} {
			t.Run(name, func(t *testing.T) {
				reg := imagetest.NewRegistry(t)
				ref := reg.Push("team/app", "v1", built)
				reg.Intercept(tc.does)
				refused(t, pull(t.Context(), n, ref), tc.code, append(tc.says, ref)...)
				absent(t, n, ref)
				clean(t, n)
				reg.Intercept(nil)
				if err := pull(t.Context(), n, ref); err != nil {
					t.Errorf("the next pull: %v", err)
				}
				forget(t, n, ref)
				clean(t, n)
			})
		}
	})
}

// TestHostileImagesReachNothing: an image with layers that try to leave the root is refused by
// name or kept inside, and nothing is written beside it.
func TestHostileImagesReachNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[images]\nretries = 0\nmax_layer_bytes = 1048576\n"})
		outside := t.TempDir()
		evil := []byte("evil")
		for name, tc := range map[string]struct {
			layers [][]imagetest.File
			code   codes.Code // OK where the root can hold it without harm
			says   []string
		}{
			"dots":       {[][]imagetest.File{{{Name: "../../../../../../.." + outside + "/evil", Body: evil}}}, codes.InvalidArgument, []string{".."}},
			"dots below": {[][]imagetest.File{{{Name: "etc/"}, {Name: "etc/../../evil", Body: evil}}}, codes.InvalidArgument, []string{".."}},
			"absolute":   {[][]imagetest.File{{{Name: outside + "/evil", Body: evil}}}, codes.OK, nil},
			// A link is followed as the container would follow it.
			"symlink":        {[][]imagetest.File{{{Name: "way", Link: outside}, {Name: "way/evil", Body: evil}}}, codes.OK, nil},
			"symlink, later": {[][]imagetest.File{{{Name: "way", Link: outside}}, {{Name: "way/evil", Body: evil}}}, codes.OK, nil},
			"hard link":      {[][]imagetest.File{{{Name: "shadow", Hard: "../../../../../../../etc/shadow"}}}, codes.InvalidArgument, []string{"shadow"}},
			"hard link through a symlink": {
				[][]imagetest.File{{{Name: "way", Link: "/etc"}, {Name: "shadow", Hard: "way/shadow"}}}, codes.InvalidArgument, []string{"shadow"},
			},
			"endless": {[][]imagetest.File{{{Name: "zeros", Body: make([]byte, 64<<20)}}}, codes.ResourceExhausted, []string{"1048576 bytes"}},
		} {
			t.Run(name, func(t *testing.T) {
				ref := imagetest.NewRegistry(t).Push("team/evil", "v1", imagetest.Image{Layers: tc.layers}.Build())
				err := pull(t.Context(), n, ref)
				if tc.code != codes.OK {
					refused(t, err, tc.code, append(tc.says, ref)...)
					absent(t, n, ref)
				} else if err != nil {
					t.Errorf("refused: %v", err)
				}
				forget(t, n, ref)
				if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
					t.Errorf("outside of the root: %v %v", left, err)
				}
				clean(t, n)
			})
		}
		image := imagetest.NewRegistry(t).Push("team/good", "v1", tiny())
		if err := pull(t.Context(), n, image); err != nil {
			t.Errorf("a good one afterwards: %v", err)
		}
	})
}

// TestAFullDiskIsTold pulls onto a file system that is full: the error says so,
// nothing half made stays, and with space it goes through.
func TestAFullDiskIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-full-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		root := filepath.Join(dir, "root")
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=48m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[images]\nretries = 0\nmin_free_bytes = 0\n"})
		image := n.Busybox(t)
		run := func(name string) {
			pod := n.RunPod(t, n.PodConfig(name))
			pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/true")).WaitExited(t)
			pod.Remove(t)
		}
		run("before")
		before := n.Baseline(t).Lasting()
		built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "big", Body: make([]byte, 8<<20)}}}, Compression: imagetest.None}.Build()
		ref := imagetest.NewRegistry(t).Push("team/big", "v1", built)
		filler := filepath.Join(dir, "root", "filler")
		fill(t, filler, 4<<20)
		for range 2 {
			refused(t, pull(t.Context(), n, ref), codes.ResourceExhausted, ref, "space")
			absent(t, n, ref)
			clean(t, n)
		}
		run("full") // a start needs no space
		clean(t, n)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err := pull(t.Context(), n, ref); err != nil {
			t.Errorf("with space: %v", err)
		}
		forget(t, n, ref)
		run("after")
		clean(t, n)
		same(t, n, before)
	})
}

// fill leaves so many bytes of a file system free.
func fill(t *testing.T, path string, free int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		t.Fatal(err)
	}
	size := int64(st.Bavail)*st.Bsize - free
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(fmt.Errorf("allocate %d bytes: %w", size, err))
	}
}
