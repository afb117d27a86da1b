package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBesideRawExec places fifty tasks by Nomad's own raw_exec and by ours in one
// run, and logs how long the last one took and what the helpers of all weigh.
func TestBesideRawExec(t *testing.T) {
	start(t, options{extra: "plugin \"raw_exec\" {\n config {\n enabled = true\n }\n}"}, func(r *rig) {
		const n = 50
		for round := range 3 {
			for _, driver := range []string{"raw_exec", "longshore"} {
				name := fmt.Sprintf("many-%s-%d", driver, round)
				body := strings.Replace(job(name, "service", fmt.Sprintf("count = %d", n), `kill_signal = "SIGKILL"`, `args = ["-c", "while true; do sleep 1000; done"]
        image_pull_policy = "missing"`), "cpu    = 100\n        memory = 32", "cpu    = 1\n        memory = 10", 1)
				if driver == "raw_exec" {
					body = strings.NewReplacer(`driver = "longshore"`, `driver = "raw_exec"`, "image   = \"IMAGE\"\n", "", `image_pull_policy = "missing"`, "", "/bin/sh", "/bin/busybox", `args = ["-c"`, `args = ["sh", "-c"`).Replace(body)
				}
				before := helpers()
				began := time.Now()
				r.run(body)
				r.eventually("all of "+name+" run", func() bool {
					running := 0
					for _, a := range r.allocs(name) {
						if a.ClientStatus == "running" {
							running++
						}
					}
					return running == n
				})
				t.Logf("%s: %d tasks ran after %s; helpers have %.1f MB a task more", driver, n, time.Since(began).Round(time.Millisecond), float64(helpers()-before)/n/1e6)
				r.purge(name)
				r.nothingLeft()
				r.eventually("nothing is left of "+name, func() bool { return len(r.allocs(name)) == 0 })
			}
		}
	})
}

// helpers is the memory of all that stands beside the tasks, bytes: everything
// but the tasks themselves and this test.
func helpers() (sum int64) {
	files, _ := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	for _, f := range files {
		dir := filepath.Dir(f)
		line, _ := os.ReadFile(dir + "/cmdline")
		exe, _ := os.Readlink(dir + "/exe")
		if strings.Contains(exe, "busybox") || strings.Contains(exe, ".test") || len(line) == 0 {
			continue
		}
		b, _ := os.ReadFile(f)
		for l := range strings.Lines(string(b)) {
			var kb int64
			if k, _ := fmt.Sscanf(l, "Pss: %d kB", &kb); k == 1 {
				sum += kb << 10
			}
		}
	}
	return sum
}
