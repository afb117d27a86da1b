package nomad

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/test/nodetest"
)

// many is a job of n small tasks that do nothing.
func many(name string, n int, config string) string {
	group := fmt.Sprintf("count = %d\n ephemeral_disk {\n size = 150\n }", n)
	j := job(name, "service", group, `kill_signal = "SIGKILL"`, config+`
        image_pull_policy = "missing"
        args = ["-c", "while true; do sleep 1000; done"]`)
	return strings.Replace(j, "cpu    = 100\n        memory = 32", "cpu    = 1\n        memory = 20", 1)
}

// place submits a job and waits until its n tasks run. It returns how long that
// took, as Nomad itself tells it: from the job's submission to the start of the
// last task. Nomad's command line is slow to start, so that it is not used.
func (r *rig) place(body, name string, n int) time.Duration {
	r.t.Helper()
	var parsed json.RawMessage
	r.send(http.MethodPost, "/v1/jobs/parse", map[string]any{"JobHCL": strings.ReplaceAll(body, "IMAGE", r.image), "Canonicalize": true}, &parsed)
	r.send(http.MethodPut, "/v1/jobs", map[string]any{"Job": parsed}, new(any))
	r.eventually("all of "+name+" run", func() bool {
		var s struct {
			Summary map[string]struct{ Running, Failed int }
		}
		if r.get("/v1/job/"+name+"/summary", &s); s.Summary["g"].Failed > 0 {
			for _, a := range r.allocs(name) {
				if a.ClientStatus == "failed" {
					r.t.Fatalf("%s:\n%s", name, a.said("main"))
				}
			}
		}
		return s.Summary["g"].Running == n
	})
	var submitted struct{ SubmitTime int64 }
	r.get("/v1/job/"+name, &submitted)
	var last int64
	for _, a := range r.allocs(name) {
		last = max(last, a.event("main", "Started").Time)
	}
	return time.Duration(last - submitted.SubmitTime)
}

// send calls the API and reads its answer into v.
func (r *rig) send(method, path string, body, v any) {
	r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, address+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(out, v)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s: %s %v: %s", method, path, resp.Status, err, out)
	}
}

// forget stops a job and waits until Nomad knows nothing of it.
func (r *rig) forget(name string) {
	r.t.Helper()
	r.purge(name)
	r.nothingLeft()
	r.eventually("nothing is left of "+name, func() bool { return len(r.allocs(name)) == 0 })
}

// TestTwoHundredTasksAtOnceAndNothingAfter places tasks at once, each with a network namespace,
// stops them, and asserts that kernel and disk hold the same as before.
func TestTwoHundredTasksAtOnceAndNothingAfter(t *testing.T) {
	start(t, options{}, func(r *rig) {
		const n = 200
		alone := `network_mode = "none"`
		r.place(many("first", 5, alone), "first", 5) // the first tasks leave state that stays: the image, pollers
		r.forget("first")
		var before nodetest.Holdings
		r.eventually("what the first tasks had is gone", func() bool {
			before = r.holdings()
			return !slices.ContainsFunc(before["files root"], func(f string) bool { return strings.Contains(f, "/trash/") && !strings.HasSuffix(f, "/trash/") }) &&
				len(before["allocations"]) == 0
		})
		took := r.place(many("many", n, alone), "many", n)
		if ps := nodetest.Processes("busybox", ""); len(ps) < n {
			t.Errorf("of %d tasks %d processes run", n, len(ps))
		}
		t.Logf("the last of %d tasks ran after %s", n, took.Round(time.Millisecond))
		began := time.Now()
		r.forget("many")
		t.Logf("nothing was left of them after %s", time.Since(began).Round(time.Millisecond))
		var diff string
		t.Cleanup(func() {
			if diff != "" {
				t.Logf("what is not as before (-before +after):\n%s", diff)
			}
		})
		r.eventually("what the tasks used is given back", func() bool {
			diff = r.holdings().Since(before)
			return diff == ""
		})
		if left := nodetest.Processes("busybox", ""); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// holdings returns the holdings of the node and of Nomad's client.
func (r *rig) holdings() nodetest.Holdings {
	r.t.Helper()
	h := r.Holdings(r.t)
	h["cgroups of Nomad"] = append(nodetest.Cgroups(r.t, "/nomad"), nodetest.Cgroups(r.t, "/nomad.slice")...)
	h["allocations"], _ = filepath.Glob(filepath.Join(r.dir, "data", "alloc", "*"))
	h["netns"], _ = filepath.Glob("/run/netns/*")
	for _, pid := range nodetest.Processes("driver", "") {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
			h.Descriptors(r.t, "plugin", pid)
		}
	}
	return h
}
