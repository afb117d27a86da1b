package mesos

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

// TestExporter: mesos_exporter reads the agent's figures, its containers' and its
// tasks.
func TestExporter(t *testing.T) {
	start(t, "MESOS_EXPORTER", func(r *rig) {
		r.launch("", "a", "while :; do :; done", false)
		r.launch("a", "b", "exec sleep 1000", false)
		r.launch("", "over", "exit 3", false)
		r.call("WAIT_CONTAINER", object{"container_id": named("", "over")})
		const metrics = "http://127.0.0.1:9105/metrics"
		var log bytes.Buffer
		cmd := exec.CommandContext(r.t.Context(), r.tool, "-addr", "127.0.0.1:9105", "-slave", "http://"+address, "-username", principal, "-password", secret, "-logLevel", "warning")
		cmd.Stdout, cmd.Stderr, cmd.Env = &log, &log, os.Environ()
		if err := cmd.Start(); err != nil {
			r.t.Fatal(err)
		}
		ended := func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		defer ended()
		scrape := func() string {
			req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, metrics, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return "" // it does not listen yet
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(resp.Body)
			return string(text)
		}
		var text string
		nodetest.Eventually(r.t, "the busy container has used CPU time, and the end of the other is counted", func() bool {
			text = scrape()
			return value(text, `mesos_agent_cpu_user_seconds_total{framework_id="mesos",id="a",source="a"}`) > 0 &&
				value(text, `mesos_slave_task_states_exit_total{state="failed"}`) == 1
		})
		for series, want := range map[string]float64{
			"mesos_collector_errors_total":                     0,
			"mesos_slave_registered":                           0,
			`mesos_slave_task_states_current{state="running"}`: 2,
			`mesos_slave_executor_state{state="running"}`:      1,
			`mesos_slave_frameworks_active`:                    1,
			`mesos_slave_task_labels{executor_id="a",framework_id="mesos",source="a",task_id="a.b",task_name="a.b"}`: 1,
		} {
			if got := value(text, series); got != want {
				r.t.Errorf("%s is %v, want %v", series, got, want)
			}
		}
		for _, series := range []string{
			`mesos_agent_mem_total_bytes{framework_id="mesos",id="a",source="a"}`, `mesos_agent_processes{framework_id="mesos",id="a",source="a"}`,
			`mesos_slave_mem{type="total"}`, `mesos_slave_cpus{type="total"}`, `mesos_slave_disk{type="total"}`, "mesos_slave_uptime_seconds",
		} {
			if got := value(text, series); got <= 0 {
				r.t.Errorf("%s is %v", series, got)
			}
		}
		ended()
		// Metrics that the exporter looks for and the agent does not have.
		var missing []string
		for _, m := range regexp.MustCompile(`metric="?([^" \n]+)"?`).FindAllStringSubmatch(log.String(), -1) {
			missing = append(missing, m[1])
		}
		slices.Sort(missing)
		r.t.Logf("not told: %s", strings.Join(slices.Compact(missing), " "))
		r.call("REMOVE_CONTAINER", object{"container_id": named("", "over")})
		r.end("a")
	})
}

// value is a series' in a scrape; -1 when it is not there.
func value(text, series string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err == nil {
				return v
			}
		}
	}
	return -1
}
