package nomad

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// example is a job of contrib/nomad, with replacements.
func example(t *testing.T, name string, replace ...string) string {
	t.Helper()
	b, err := os.ReadFile("../../../contrib/nomad/" + name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("%s has no %s", name, replace[i])
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text
}

// TestExamples runs the jobs that the guide shows, with the image of the tests.
func TestExamples(t *testing.T) {
	start(t, options{}, func(r *rig) {
		const image = "docker.io/library/busybox:1.37"
		r.run(example(t, "batch.nomad.hcl", image, "IMAGE", `"nobody"`, `"65534"`))
		r.run(example(t, "web.nomad.hcl", image, "IMAGE"))
		a := r.allocation("sum", "complete")
		r.eventually("the sum is there", func() bool {
			out, err := r.nomad("alloc", "fs", a.ID, "alloc/data/sum")
			return err == nil && strings.HasSuffix(out, "  -\n")
		})
		b := r.allocation("web", "running")
		if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d/", r.port(b, "http"))); got != "hello from "+b.ID+"\n" {
			t.Errorf("got %q", got)
		}
		r.purge("sum", "web")
		r.nothingLeft()
	})
}

// TestAJobForDockerRunsUnchanged: announced as docker, the driver takes the place
// of Nomad's own.
func TestAJobForDockerRunsUnchanged(t *testing.T) {
	start(t, options{name: "docker"}, func(r *rig) {
		r.run(example(t, "docker.nomad.hcl", `"redis:7"`, `"IMAGE"`, `["redis-server", "--save", ""]`,
			`["sh", "-c", "mkdir /tmp/w; echo PONG > /tmp/w/index.html; df /data | tail -1; exec httpd -f -p 6379 -h /tmp/w"]`))
		a := r.allocation("cache", "running")
		if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d/", r.port(a, "db"))); got != "PONG\n" {
			t.Errorf("got %q", got)
		}
		var out string
		r.eventually("it has its tmpfs", func() bool {
			out, _ = r.nomad("alloc", "logs", a.ID, "redis")
			return strings.Contains(out, " 65536 ")
		})
		r.purge("cache")
		r.nothingLeft()
	})
}

// TestNomadsOwnCollector: with FIFOs Nomad reads and rotates the logs.
func TestNomadsOwnCollector(t *testing.T) {
	start(t, options{plugin: `logs = "fifo"`}, func(r *rig) {
		r.run(job("fifo", "batch", once, "logs {\n max_files = 3\n max_file_size = 1\n}", `args = ["-c", "seq 1 2000; echo last words; echo apart >&2"]`))
		a := r.allocation("fifo", "complete")
		out := r.logged(a, "last words")
		if n := strings.Count(out, "\n"); n != 2001 {
			t.Errorf("%d lines of 2001", n)
		}
		r.logged(a, "apart", "-stderr")
		r.run(job("quiet", "batch", once, "logs {\n disabled = true\n}", `args = ["-c", "echo nobody hears; exit 0"]`))
		r.allocation("quiet", "complete")
		r.purge("fifo", "quiet")
		r.nothingLeft()
	})
}

// TestAnImageThatIsNotThere: no restart helps it.
func TestAnImageThatIsNotThere(t *testing.T) {
	start(t, options{}, func(r *rig) {
		r.run(job("never", "batch", "", "", `args = ["-c", "true"]
        image_pull_policy = "never"`))
		if a := r.allocation("never", "failed"); strings.Contains(a.said("main"), "Task restarting") {
			t.Errorf("it was tried again:\n%s", a.said("main"))
		}
		r.purge("never")
		r.nothingLeft()
	})
}

// TestARegistryThatWantsCredentials has the task's; wrong ones are an error that no
// restart helps.
func TestARegistryThatWantsCredentials(t *testing.T) {
	start(t, options{}, func(r *rig) {
		r.registry.Intercept(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
			if user, password, ok := req.BasicAuth(); !ok || user != "me" || password != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, req)
		})
		with := func(password string) string {
			return `args = ["-c", "true"]
        auth {
          username = "me"
          password = "` + password + `"
        }`
		}
		r.run(job("wrong", "batch", "", "", with("guess")))
		if a := r.allocation("wrong", "failed"); !strings.Contains(a.said("main"), "Driver Failure") || strings.Contains(a.said("main"), "Task restarting") || strings.Contains(a.said("main"), "guess") {
			t.Errorf("with a wrong password:\n%s", a.said("main"))
		}
		r.run(job("right", "batch", once, "", with("secret")))
		r.allocation("right", "complete")
		r.purge("wrong", "right")
		r.nothingLeft()
	})
}
