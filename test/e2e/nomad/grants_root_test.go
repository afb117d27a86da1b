package nomad

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// pushStatic pushes an image of a static program, which is built from source, a directory.
func (r *rig) pushStatic(name, source string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	build := exec.CommandContext(r.t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, source)
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", source, err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	files := []imagetest.File{{Name: name, Body: text, Mode: 0o755}}
	return r.registry.Push(name, "1", imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Entrypoint: []string{"/" + name}}}.Build())
}

// granting returns the job of contrib/grants under another name, with an image of the rig; document replaces the job's
// unless it is "".
func granting(t *testing.T, name, image, document string) string {
	t.Helper()
	text := example(t, "../grants/grants.nomad.hcl", `job "greeter"`, `job "`+name+`"`, "registry.example/greeter", image)
	if document == "" {
		return text
	}
	const begin, end = "<<EOT\n", "EOT\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("there is no document in\n%s", text)
	}
	return before + begin + document + end + after
}

// withFiles gives the task of such a job a directory to write to, a page to read and a secret.
func withFiles(job string) string {
	job = strings.Replace(job, "        grants {", `        mount {
          type   = "bind"
          source = "../alloc/data"
          target = "/data"
        }

        grants {`, 1)
	return strings.Replace(job, "      resources {", `      template {
        data        = "a page"
        destination = "local/index"
      }

      template {
        data        = "open sesame"
        destination = "secrets/key"
      }

      resources {`, 1)
}

// confinement returns the agent's record of the rights of a job's program.
func (r *rig) confinement(job string) core.Confinement {
	r.t.Helper()
	id, err := r.CLI("ps", "-q", "--no-trunc", "--filter", "label=com.hashicorp.nomad.job_id="+job)
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := r.CLI("inspect", strings.TrimSpace(id))
	if err != nil {
		r.t.Fatal(err)
	}
	var list []struct {
		Record struct{ Confinement core.Confinement }
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		r.t.Fatalf("inspect %s: %v\n%s", id, err, out)
	}
	return list[0].Record.Confinement
}

// ended waits until a job's task greeter has ended, and returns the event of it.
func (r *rig) ended(job string) (a alloc, e taskEvent) {
	r.t.Helper()
	r.eventually(job+" has ended", func() bool {
		for _, a = range r.allocs(job) {
			if e = a.event("greeter", "Terminated"); e.Type != "" {
				return true
			}
		}
		return false
	})
	return a, e
}

// TestATaskHoldsWhatItsDocumentGrants: the job of contrib/grants runs as it is, with the guide's program; a program
// with mounts, a secret and a server on the board gets less by a narrower document.
func TestATaskHoldsWhatItsDocumentGrants(t *testing.T) {
	start(t, options{}, func(r *rig) {
		if r.node().Attributes["plugins.cni.version.bridge"] == "" {
			t.Skip("this Nomad finds no CNI plugins, which it makes the group's bridge with")
		}
		greeter, granted := r.pushStatic("greeter", "../../../contrib/grants/greeter"), r.pushStatic("granted", "../../node/testdata/granted")
		const log, listen = "log: !container_log\n", "listen: !listen {tcp: 8080}\n"
		const common = "greeting: held\nshutdown: !shutdown\nsite: !mount {path: /local, rights: [read]}\n" + log + listen
		r.run(granting(t, "greeter", greeter, ""))
		r.run(granting(t, "silent", greeter, "greeting: hello\n"+log+"stop: !shutdown\n"))
		r.run(withFiles(granting(t, "wide", granted, common+"data: !mount /data\nsecret: !secret key\nserve: !server {app: wide}\n")))
		r.run(withFiles(granting(t, "narrow", granted, common+"data: !mount {path: /data, rights: [read]}\nconnect: !client {app: wide}\n")))
		r.run(granting(t, "refused", granted, "site: !mount /etc\n"))

		a := r.allocation("greeter", "running")
		get := func(a alloc, path, want string) {
			t.Helper()
			if got := fetch(t, r, fmt.Sprintf("http://127.0.0.1:%d%s", r.port(a, "http"), path)); !strings.HasPrefix(got, want) {
				t.Errorf("%s answers %s with %q, want %q", a.JobID, path, got, want)
			}
		}
		get(a, "/", "hello\n")
		r.loggedBy(a, "greeter", "serving\n")
		if out, err := r.nomad("alloc", "exec", "-i=false", "-t=false", a.ID, "/greeter"); err == nil || !strings.Contains(err.Error(), "the program holds only its descriptors") {
			t.Errorf("exec: %s, %v", out, err)
		}
		c := r.confinement("greeter")
		var given []string
		for _, g := range c.Accepted {
			given = append(given, g.At+": "+g.Grant)
		}
		if got, want := strings.Join(given, ", "), "listen: !listen {tcp: 8080}, log: !container_log, stop: !shutdown"; got != want || !c.Seccomp || !c.NoNewPrivileges || !c.NoCapabilities {
			t.Errorf("it holds %s: %+v, want %s", got, c, want)
		}
		r.stops(a, "0")

		wide := r.allocation("wide", "running")
		get(wide, "/hello", "held")
		get(wide, "/site", "a page, write: ")
		get(wide, "/secret", `"open sesame" <nil>`)
		get(wide, "/write?text=written", "<nil>")
		get(wide, "/environment", "LISTEN_PID=1 LISTEN_FDS=")
		for file, want := range map[string]string{"alloc/data/written": "written", "greeter/local/index": "a page"} {
			if out, err := r.nomad("alloc", "fs", wide.ID, file); err != nil || out != want {
				t.Errorf("%s is %q, %v", file, out, err)
			}
		}
		r.loggedBy(wide, "greeter", "logged by a grant\n")

		narrow := r.allocation("narrow", "running")
		get(narrow, "/hello", "held")
		get(narrow, "/site", "a page, write: ")
		get(narrow, "/secret", "open /secrets/key: ")
		get(narrow, "/write?text=written", "read-only file system")
		get(narrow, "/board", "held to ")
		get(narrow, "/board?app=other", "board: not permitted: ")
		get(wide, "/board", "board: not permitted: ")
		if out, err := r.nomad("alloc", "fs", narrow.ID, "alloc/data/written"); err == nil {
			t.Errorf("it has written %q", out)
		}
		for _, a := range []alloc{wide, narrow} {
			r.stops(a, "5")
			r.loggedBy(a, "greeter", "asked to stop: 0 <nil>\n")
		}

		silent, e := r.ended("silent")
		if e.Details["exit_code"] != "1" || e.Details["oom_killed"] != "false" {
			t.Errorf("without a listener:\n%s", silent.said("greeter"))
		}
		r.loggedBy(silent, "greeter", "no listener was granted, and so: listen tcp :8080: socket: operation not permitted\n", "-stderr")
		if a := r.allocation("refused", "failed"); !strings.Contains(a.said("greeter"), `line 1, column 7: Unknown volume mount "/etc"`) {
			t.Errorf("refused:\n%s", a.said("greeter"))
		}
		r.purge("greeter", "silent", "wide", "narrow", "refused")
		r.nothingLeft()
	})
}

// stops makes Nomad stop a job. Its program sees that by its descriptor, and ends by itself, with its own exit
// code.
func (r *rig) stops(a alloc, code string) {
	r.t.Helper()
	r.must("job", "stop", "-detach", a.JobID)
	a = r.allocation(a.JobID, "complete")
	if e := a.event("greeter", "Terminated"); e.Details["exit_code"] != code || e.Details["signal"] != "0" || a.TaskStates["greeter"].Restarts != 0 {
		r.t.Errorf("%s:\n%s", a.JobID, a.said("greeter"))
	}
}
