//go:build prof

package nomad

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/test/nodetest"
)

func (r *rig) httpSock(path string) string {
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.State, "control-http.sock"))
	}}}
	resp, err := c.Get("http://x" + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

func cpuOf(pids ...int) (sum float64) {
	for _, p := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 15 {
			continue
		}
		for _, i := range []int{11, 12, 13, 14} {
			n, _ := strconv.ParseFloat(f[i], 64)
			sum += n / 100
		}
	}
	return sum
}

func (r *rig) acct() float64 {
	b, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + r.Cgroup + "/cpuacct.usage")
	if err != nil {
		r.t.Log(err)
	}
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	return n / 1e9
}

func pss(pids ...int) (sum int64) {
	for _, p := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		for l := range strings.Lines(string(b)) {
			var kb int64
			if k, _ := fmt.Sscanf(l, "Pss: %d kB", &kb); k == 1 {
				sum += kb
			}
		}
	}
	return sum
}

func (r *rig) detail() (out string) {
	for _, p := range []int{r.Pid(), nodetest.Processes("driver", "")[0]} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		for l := range strings.Lines(string(b)) {
			if strings.HasPrefix(l, "Pss_") {
				out += strings.Join(strings.Fields(l), "") + " "
			}
		}
		out += "; "
	}
	for l := range strings.Lines(r.httpSock("/metrics")) {
		if strings.HasPrefix(l, "go_memstats_") && (strings.Contains(l, "bytes ") ) {
			out += strings.TrimPrefix(strings.TrimSpace(l), "go_memstats_") + " "
		}
	}
	return out
}

func (r *rig) roles() map[string]int64 {
	return map[string]int64{
		"nomad": pss(r.cmd.Process.Pid), "plugin": pss(nodetest.Processes("driver", "")...), "agent": pss(r.Pid()),
		"keeper": pss(nodetest.Processes("longshore-keeper", "keeper")...), "nest": pss(nodetest.Processes("longshore-keeper", "nest")...),
	}
}

func (r *rig) cpus() map[string]float64 {
	return map[string]float64{
		"nomad": cpuOf(r.cmd.Process.Pid), "plugin": cpuOf(nodetest.Processes("driver", "")...), "agent": cpuOf(r.Pid()),
		"keeper": cpuOf(nodetest.Processes("longshore-keeper", "keeper")...), "nest": cpuOf(nodetest.Processes("longshore-keeper", "nest")...), "test": cpuOf(os.Getpid()), "tasks": r.acct(),
	}
}

func (r *rig) submit(hcl string) time.Time {
	r.t.Helper()
	hcl = strings.ReplaceAll(hcl, "IMAGE", r.image)
	body, _ := json.Marshal(map[string]any{"JobHCL": hcl, "Canonicalize": true})
	resp, err := http.Post(address+"/v1/jobs/parse", "application/json", bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	j, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		r.t.Fatal(string(j))
	}
	began := time.Now()
	req, _ := http.NewRequest("PUT", address+"/v1/jobs", strings.NewReader(`{"Job":`+string(j)+`}`))
	resp, err = http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	j, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		r.t.Fatal(string(j))
	}
	return began
}

func (r *rig) runningOf(name string) int {
	var s struct{ Summary map[string]struct{ Running int } }
	r.get("/v1/job/"+name+"/summary", &s)
	return s.Summary["g"].Running
}

func TestProf(t *testing.T) {
	start(t, options{extra: "plugin \"raw_exec\" {\n config {\n enabled = true\n }\n}"}, func(r *rig) {
		n := 50
		if s := os.Getenv("PROF_N"); s != "" {
			n, _ = strconv.Atoi(s)
		}
		rounds, _ := strconv.Atoi(os.Getenv("PROF_ROUNDS"))
		for round := range rounds {
			for _, driver := range strings.Fields(os.Getenv("PROF_DRIVERS")) {
				name := fmt.Sprintf("many-%s-%d", driver, round)
				name = strings.ReplaceAll(name, "_", "-")
				body := strings.Replace(job(name, "service", fmt.Sprintf("count = %d", n), `kill_signal = "SIGKILL"`, `args = ["-c", "while true; do sleep 1000; done"]
        image_pull_policy = "missing"`), "cpu    = 100\n        memory = 32", "cpu    = 1\n        memory = 10", 1)
				switch driver {
				case "raw_exec":
					body = strings.NewReplacer(`driver = "longshore"`, `driver = "raw_exec"`, "image   = \"IMAGE\"\n", "", `image_pull_policy = "missing"`, "", "/bin/sh", "/bin/busybox", `args = ["-c"`, `args = ["sh", "-c"`).Replace(body)
				case "mock_driver":
					a, rest, _ := strings.Cut(body, "config {")
					_, c, _ := strings.Cut(rest, "}")
					body = a + "config {\n run_for = \"1000s\"\n }" + c
					body = strings.Replace(body, `driver = "longshore"`, `driver = "mock_driver"`+"\n logs { disabled = true }", 1)
				}
				before := helpers()
				p0 := r.roles()
				t.Log(r.detail())
				c0 := r.cpus()
				pr := make(chan string, 1)
				if os.Getenv("PROF_OUT") != "" && driver == "longshore" {
					go func() { pr <- r.httpSock("/debug/pprof/profile?seconds=2") }()
				}
				began := r.submit(body)
				tick := time.NewTicker(20 * time.Millisecond)
				for r.runningOf(name) < n {
					<-tick.C
				}
				took := time.Since(began)
				tick.Stop()
				c1 := r.cpus()
				var firstRecv, lastStart, firstStart, lastRecv int64
				var list []struct {
					TaskStates map[string]struct{ Events []struct {
						Type string
						Time int64
					} }
				}
				r.get("/v1/job/"+name+"/allocations", &list)
				for _, a := range list {
					for _, e := range a.TaskStates["main"].Events {
						d := e.Time - began.UnixNano()
						switch e.Type {
						case "Received":
							if firstRecv == 0 || d < firstRecv { firstRecv = d }
							lastRecv = max(lastRecv, d)
						case "Started":
							if firstStart == 0 || d < firstStart { firstStart = d }
							lastStart = max(lastStart, d)
						}
					}
				}
				line := ""
				for _, k := range []string{"nomad", "plugin", "agent", "keeper", "nest", "test", "tasks"} {
					line += fmt.Sprintf(" %s=%.2f", k, c1[k]-c0[k])
				}
				load, _ := os.ReadFile("/proc/loadavg")
				t.Logf("%s: %d took %s; received %dms..%dms started %dms..%dms; cpu%s; mem %.2f MB/task load %s", driver, n, took.Round(time.Millisecond), firstRecv/1e6, lastRecv/1e6, firstStart/1e6, lastStart/1e6, line, float64(total(helpers())-total(before))/float64(n)/1e6, strings.TrimSpace(string(load)))
				if os.Getenv("PROF_OUT") != "" && driver == "longshore" {
					os.WriteFile(fmt.Sprintf("%s.%d", os.Getenv("PROF_OUT"), round), []byte(<-pr), 0o600)
				}
				p1 := r.roles()
				if d, err := time.ParseDuration(os.Getenv("PROF_STEADY")); err == nil {
					c0 := r.cpus()
					os.WriteFile("/tmp/nomad-rest.steady", []byte(r.httpSock("/debug/pprof/profile?seconds="+strconv.Itoa(int(d.Seconds())))), 0o600)
					os.WriteFile("/tmp/nomad-rest.heap", []byte(r.httpSock("/debug/pprof/allocs?seconds=6")), 0o600)
					os.WriteFile("/tmp/nomad-rest.goroutines", []byte(r.httpSock("/debug/pprof/goroutine?debug=1")), 0o600)
					c1 := r.cpus()
					line := ""
					for _, k := range []string{"nomad", "plugin", "agent", "keeper", "nest", "test", "tasks"} {
						line += fmt.Sprintf(" %s=%.2f", k, c1[k]-c0[k])
					}
					p2 := r.roles()
					t.Log(r.detail())
					t.Logf("steady %s:%s\n pss before %v\n after start %v\n after steady %v", d, line, p0, p1, p2)
				}
				r.purge(name)
				r.nothingLeft()
				r.eventually("nothing is left of "+name, func() bool { return len(r.allocs(name)) == 0 })
			}
		}
		if f := os.Getenv("PROF_METRICS"); f != "" {
			os.WriteFile(f, []byte(r.httpSock("/metrics")), 0o600)
		}
	})
}

func total(m map[int]int64) (sum int64) {
	for _, v := range m {
		sum += v
	}
	return sum
}
