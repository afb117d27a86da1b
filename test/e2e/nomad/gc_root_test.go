package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestNothingIsKeptTooLong: an image goes after its last task, and what tasks have
// left when Nomad collects its garbage; what is used stays.
func TestNothingIsKeptTooLong(t *testing.T) {
	start(t, options{plugin: "gc {\n image_delay = \"1ms\"\n}"}, func(r *rig) {
		images := func() string {
			t.Helper()
			out, err := r.CLI("images")
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		other := r.other()
		forever := `args = ["-c", "exec sleep 1000"]`
		r.run(job("stays", "service", "", `kill_signal = "SIGKILL"`, forever))
		r.run(strings.Replace(job("goes", "batch", once, "", `args = ["-c", "true"]`), "IMAGE", other, 1))
		r.run(strings.Replace(job("stops", "service", "", `kill_signal = "SIGKILL"`, forever), "IMAGE", other, 1))
		stays, goes, stops := r.allocation("stays", "running"), r.allocation("goes", "complete"), r.allocation("stops", "running")
		if all := images(); !strings.Contains(all, "busybox") || !strings.Contains(all, "other") {
			t.Errorf("of two images that are used there are:\n%s", all)
		}
		r.must("job", "stop", "-detach", "stops")
		r.eventually("the image goes after its last task", func() bool { return !strings.Contains(images(), "other") })
		if all := images(); !strings.Contains(all, "busybox") {
			t.Errorf("an image that a task uses has gone:\n%s", all)
		}

		dir := func(a alloc) string { return filepath.Join(r.dir, "data", "alloc", a.ID) }
		for _, a := range []alloc{stays, goes, stops} {
			if _, err := os.Stat(dir(a)); err != nil {
				t.Errorf("%s: %v", a.JobID, err)
			}
		}
		r.allocation("stops", "complete")
		r.must("system", "gc")
		r.eventually("what has ended is collected", func() bool {
			var jobs []any
			return r.get("/v1/jobs", &jobs) && len(jobs) == 1 && len(r.allocs("goes"))+len(r.allocs("stops")) == 0 && gone(dir(goes)) && gone(dir(stops))
		})
		if a := r.look(stays); a.ClientStatus != "running" || gone(dir(stays)) || a.TaskStates["main"].Restarts != 0 {
			t.Errorf("what runs was collected too: %+v", a)
		}
		r.run(strings.Replace(job("again", "batch", once, "", `args = ["-c", "true"]`), "IMAGE", other, 1))
		r.allocation("again", "complete")
		r.purge("stays", "again")
		r.must("system", "gc")
		r.nothingLeft()
		r.eventually("no image and no directory is left", func() bool {
			left, err := os.ReadDir(filepath.Join(r.dir, "data", "alloc"))
			return err == nil && len(left) == 0 && !strings.Contains(images(), "busybox") && !strings.Contains(images(), "other")
		})
	})
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

// other pushes a second image, which differs from the first, and returns its name.
func (r *rig) other() string {
	r.t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", "sh", "true", "sleep")
	if err != nil {
		r.t.Fatal(err)
	}
	img := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin", "OTHER=yes"}}}
	return r.registry.Push("other", "1", img.Build())
}
