package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestNothingIsKeptTooLong: an image goes after its last task, and remains of tasks when
// Nomad collects its garbage; images and directories in use stay, an image that is only
// shown too.
func TestNothingIsKeptTooLong(t *testing.T) {
	start(t, options{plugin: "gc {\n image_delay = \"1ms\"\n}"}, func(r *rig) {
		second, third := r.push("second"), r.push("third")
		forever, shortly := `args = ["-c", "exec sleep 1000"]`, `args = ["-c", "true"]`
		of := func(image, body string) string { return strings.Replace(body, "IMAGE", image, 1) }
		has := func(image string) bool {
			t.Helper()
			out, err := r.CLI("images")
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(out, image)
		}
		r.run(job("stays", "service", "", `kill_signal = "SIGKILL"`, `args = ["-c", "cat /seen/which; touch /seen/x 2>&1; exec sleep 1000"]
        mount {
          type   = "image"
          source = "`+second+`"
          target = "/seen"
          image_options {
            subpath = "etc"
          }
        }`))
		r.run(of(second, job("stops", "service", "", `kill_signal = "SIGKILL"`, forever)))
		stays, stops := r.allocation("stays", "running"), r.allocation("stops", "running")
		r.run(of(third, job("goes", "batch", once, "", shortly)))
		goes := r.allocation("goes", "complete")
		if out := r.logged(stays, "Read-only"); !strings.HasPrefix(out, "second\n") {
			t.Errorf("the image that is shown: %s", out)
		}
		r.eventually("the image goes after its task", func() bool { return !has("third") })
		r.must("job", "stop", "-detach", "stops")
		r.allocation("stops", "complete")
		r.run(of(third, job("again", "batch", once, "", shortly)))
		r.allocation("again", "complete")
		r.eventually("the image goes again", func() bool { return !has("third") })
		if !has("busybox") || !has("second") {
			t.Error("an image that a task uses has gone")
		}

		dir := func(a alloc) string { return filepath.Join(r.dir, "data", "alloc", a.ID) }
		for _, a := range []alloc{stays, goes, stops} {
			if gone(dir(a)) {
				t.Errorf("%s has no directory", a.JobID)
			}
		}
		r.must("system", "gc")
		r.eventually("what has ended is collected", func() bool {
			var jobs []any
			return r.get("/v1/jobs", &jobs) && len(jobs) == 1 && len(r.allocs("goes"))+len(r.allocs("stops")) == 0 && gone(dir(goes)) && gone(dir(stops))
		})
		if a := r.look(stays); a.ClientStatus != "running" || gone(dir(stays)) || a.TaskStates["main"].Restarts != 0 {
			t.Errorf("what runs was collected too: %+v", a)
		}
		r.purge("stays")
		r.must("system", "gc")
		r.nothingLeft()
		r.eventually("no image and no directory is left", func() bool {
			left, err := os.ReadDir(filepath.Join(r.dir, "data", "alloc"))
			return err == nil && len(left) == 0 && !has("busybox") && !has("second") && !has("third")
		})
	})
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

// push pushes an image with its name in /etc/which.
func (r *rig) push(name string) string {
	r.t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", "sh", "true", "sleep", "cat", "touch")
	if err != nil {
		r.t.Fatal(err)
	}
	files = append(files, imagetest.File{Name: "etc/which", Body: []byte(name + "\n")})
	img := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}}
	return r.registry.Push(name, "1", img.Build())
}
