package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestPrometheus: Prometheus, with the guide's jobs for a node with pods, has the series of the
// node and of the dashboard.
func TestPrometheus(t *testing.T) {
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s: %v (Debian's package prometheus)", program, err)
		}
	}
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := tlsconftest.New(t)
		cert, key := ca.Issue("longshore")
		token := filepath.Join(dir, "token")
		if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		address := freePort(t)
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(
			"[metrics]\nlisten = %q\ncert = %q\nkey = %q\ntoken_file = %q\n", address, cert, key, token)})
		image := n.Busybox(t)
		var containers int
		for _, pod := range []string{"a", "b"} {
			p := n.RunPod(t, n.PodConfig(pod))
			for _, name := range []string{"main", "beside"} {
				// It works a little, so that there is something to see, and is held back.
				cfg := nodetest.ContainerConfig(name, image, "/bin/sh", "-c", "while :; do :; done")
				cfg.Image.UserSpecifiedImage = "busybox:test"
				cfg.Linux.Resources = &v1.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: 2_000, MemoryLimitInBytes: 64 << 20}
				p.Run(t, cfg)
				containers++
			}
		}
		text := get(t, ca, "https://"+address+"/metrics/cadvisor", "s3cret")
		t.Run("text", func(t *testing.T) { readByPromtool(t, text) })
		t.Run("guard", func(t *testing.T) { guarded(t, ca, address) })

		examples := guideExamples(t)
		_, port, _ := strings.Cut(address, ":")
		place := strings.NewReplacer("/etc/prometheus/longshore-token", token, "/etc/prometheus/longshore-ca.pem", ca.File, "node-1.example:9478", address,
			"$1:9478", "$1:"+port, "server_name: longshore", "server_name: 127.0.0.1",
			// Debian's Prometheus is built without this one: its targets, as it would find them.
			"kubernetes_sd_configs:\n      - role: node\n",
			"static_configs: [{targets: [node-1], labels: {__meta_kubernetes_node_name: node-1, __meta_kubernetes_node_address_InternalIP: 127.0.0.1}}]\n")
		jobs := make([]string, 0, len(examples))
		for i, e := range examples {
			file := filepath.Join(dir, fmt.Sprintf("prometheus-%d.yml", i))
			jobs = append(jobs, file)
			if err := os.WriteFile(file, []byte("global: { scrape_interval: 2s, scrape_timeout: 2s }\n"+place.Replace(e)), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := command(t, "promtool", "check", "config", file).CombinedOutput(); err != nil {
				t.Errorf("the guide's example %d: %v\n%s", i, err, out)
			}
		}
		if len(jobs) != 2 || t.Failed() {
			t.Fatalf("%d examples of scrape jobs in the guide", len(jobs))
		}
		p := startPrometheus(t, dir, jobs[0])

		// All series have arrived: none was refused or lost on the way.
		nodetest.Eventually(t, "every series of /metrics/cadvisor is in Prometheus", func() bool {
			stored := p.value(`count({job="longshore-cadvisor",__name__=~"container_.+"})`)
			return stored > 0 && stored == float64(len(samples(get(t, ca, "https://"+address+"/metrics/cadvisor", "s3cret"))))
		})
		const labelled = `count(container_memory_working_set_bytes{container=~"main|beside",pod=~"a|b",namespace="test",image="busybox:test",id!="",name!=""})`
		nodetest.Eventually(t, "each container has its labels", func() bool { return p.value(labelled) == float64(containers) })
		t.Run("dashboard", func(t *testing.T) { dashboard(t, n, p) })
		t.Run("rules", checkRules)
		t.Run("alerts", func(t *testing.T) { alerts(t, n, p, jobs[0], image) })
		p.reload(jobs[0], jobs[1])
		const asKubelets = `count(container_memory_working_set_bytes{job="kubelet",metrics_path="/metrics/cadvisor",node="node-1",container!="",pod=~"a|b"})`
		nodetest.Eventually(t, "the series are those of kubelet's job", func() bool { return p.value(asKubelets) == float64(containers) })
		n.Check()
	})
}

// guideExamples are the scrape jobs that the guide shows.
func guideExamples(t *testing.T) (found []string) {
	t.Helper()
	b, err := os.ReadFile("../../docs/guide/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		if strings.HasPrefix(block[1], "scrape_configs:") {
			found = append(found, block[1])
		}
	}
	return found
}

// readByPromtool has Prometheus' own parser read the text. Its opinion on names is
// of no use here: they are cadvisor's.
func readByPromtool(t *testing.T, text string) {
	cmd := command(t, "promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	const lint = 3
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != lint) || strings.Contains(string(out), "error while") {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	bad := command(t, "promtool", "check", "metrics")
	bad.Stdin = strings.NewReader(text + "container_broken{pod=\"x} 1\n")
	if out, err := bad.CombinedOutput(); err == nil || !strings.Contains(string(out), "error while") {
		t.Errorf("promtool reads anything: %v\n%s", err, out)
	}
}

// guarded: no series without the token.
func guarded(t *testing.T, ca *tlsconftest.Authority, address string) {
	for _, token := range []string{"", "wrong"} {
		resp := request(t, ca, "https://"+address+"/metrics/cadvisor", token)
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || strings.Contains(string(body), "container_") {
			t.Errorf("with token %q: %s", token, resp.Status)
		}
	}
}

func request(t *testing.T, ca *tlsconftest.Authority, address, token string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(""), DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func get(t *testing.T, ca *tlsconftest.Authority, address, token string) string {
	t.Helper()
	resp := request(t, ca, address, token)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %s", resp.Status, err, body)
	}
	return string(body)
}

// samples are the text's lines that are no comment.
func samples(text string) (lines []string) {
	for l := range strings.Lines(text) {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, l)
		}
	}
	return lines
}

// freePort is an address of loopback that nobody has.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, name, args...)
}

// prometheus is a running one.
type prometheus struct {
	t       *testing.T
	base    string
	process *os.Process
}

// reload gives it another configuration.
func (p prometheus) reload(at, config string) {
	p.t.Helper()
	b, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(at, b, 0o600)
	}
	if err == nil {
		err = p.process.Signal(syscall.SIGHUP)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func startPrometheus(t *testing.T, dir, config string) prometheus {
	t.Helper()
	address := freePort(t)
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "prometheus",
		"--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if b, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("prometheus' log:\n%s", b)
		}
		_ = log.Close()
	})
	p := prometheus{t, "http://" + address, cmd.Process}
	nodetest.Eventually(t, "Prometheus is ready", func() bool {
		resp, err := p.get("/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

func (p prometheus) get(path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.base+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// ask calls the API of Prometheus and reads its data into v.
func (p prometheus) ask(v any, call string, params url.Values) {
	p.t.Helper()
	resp, err := p.get("/api/v1/" + call + "?" + params.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: v}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s %v: %v, %s", call, params, err, answer.Error)
	}
}

// values are those of a query's series now; those that are no number are left out.
func (p prometheus) values(query string) (found []float64) {
	p.t.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	p.ask(&data, "query", url.Values{"query": {query}})
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		if f, err := strconv.ParseFloat(text, 64); err == nil && text != "NaN" {
			found = append(found, f)
		}
	}
	return found
}

// value is a query's one series; 0 when it has none.
func (p prometheus) value(query string) float64 {
	p.t.Helper()
	v := p.values(query)
	if len(v) == 0 {
		return 0
	}
	return slices.Max(v)
}

// labelValues answers a variable of the dashboard, label_values(series, label).
func (p prometheus) labelValues(definition string) (found []string) {
	p.t.Helper()
	m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(definition)
	if m == nil {
		p.t.Fatalf("variable %q", definition)
	}
	p.ask(&found, "label/"+m[2]+"/values", url.Values{"match[]": {m[1]}})
	return found
}

// dashboard asks every query of every panel, with the variables' values, until each
// has a series with a number: rates need two scrapes.
func dashboard(t *testing.T, n *nodetest.Node, p prometheus) {
	b, err := os.ReadFile("../../contrib/grafana/longshore.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Templating struct {
			List []struct{ Name, Type, Definition, AllValue string }
		}
		Panels []struct {
			ID          int
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	put := []string{"$__rate_interval", "10s"}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var values []string
		nodetest.Eventually(t, "variable "+v.Name+" has values", func() bool {
			values = p.labelValues(strings.NewReplacer(put...).Replace(v.Definition))
			return len(values) > 0
		})
		if v.AllValue != ".*" {
			t.Errorf("all of variable %s is %q", v.Name, v.AllValue)
		}
		// As Grafana does with several that are chosen.
		for i := range values {
			values[i] = strings.ReplaceAll(regexp.QuoteMeta(values[i]), `\`, `\\`)
		}
		put = append(put, "$"+v.Name, "("+strings.Join(values, "|")+")")
	}
	asked, ids := 0, map[int]bool{}
	for _, panel := range d.Panels {
		if ids[panel.ID] || panel.GridPos.W == 0 || panel.GridPos.X+panel.GridPos.W > 24 || (panel.Type == "row") != (len(panel.Targets) == 0) {
			t.Errorf("panel %q: %+v", panel.Title, panel)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			query := strings.NewReplacer(put...).Replace(target.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("panel %q: a variable is left in %s", panel.Title, query)
				continue
			}
			nodetest.Eventually(t, "panel "+panel.Title+" has series: "+query, func() bool {
				if len(p.values(query)) > 0 {
					return true
				}
				n.RunPod(t, n.PodConfig("short")).Remove(t) // only calls have latencies
				return false
			})
			asked++
		}
	}
	if asked < 20 {
		t.Errorf("only %d queries", asked)
	}
}
