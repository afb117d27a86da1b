package cri

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri/metric"
	"github.com/longshore/longshore/internal/obs"
)

func scrape(ctx context.Context, h http.Handler, encoding string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics/cadvisor", nil)
	r.Header.Set("Accept-Encoding", encoding)
	h.ServeHTTP(w, r)
	return w
}

// TestScrape: the metrics that the CRI's own calls tell, as Prometheus reads them.
func TestScrape(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	run := n.running(t, pod, "run")
	n.container(t, pod, "created")
	stopped := n.pod(t, "q")
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: stopped}); err != nil {
		t.Fatal(err)
	}
	c, err := n.As(core.OwnerCRI).Container(ctx, core.ID(run))
	if err != nil {
		t.Fatal(err)
	}
	n.Cgroups.SetStats(c.Cgroup, core.Stats{CPU: core.CPUStats{Usage: core.Known(7_250_000_000)}})
	n.Network.SetStats(c.Sandbox, core.NetStats{Name: "eth0", RxBytes: 9})
	plain := scrape(ctx, n.face.Scrapes(), "gzip;q=0")
	if plain.Code != http.StatusOK || plain.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" || plain.Header().Get("Content-Encoding") != "" {
		t.Fatalf("%d, %v", plain.Code, plain.Header())
	}
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="run",id="` + c.Cgroup.Path + `",image="redis:7",name="` + run + `",namespace="default",pod="p",cpu="total"} 7.25` + "\n",
		`container_network_receive_bytes_total{container="",id="`, `interface="eth0"} 9` + "\n",
	} {
		if !strings.Contains(plain.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, plain.Body)
		}
	}
	for _, not := range []string{`container="created"`, `pod="q"`} {
		if strings.Contains(plain.Body.String(), not) {
			t.Errorf("%s is told of", not)
		}
	}
	zipped := scrape(ctx, n.face.Scrapes(), "deflate, gzip")
	z, err := gzip.NewReader(zipped.Body)
	if err != nil || zipped.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v, %v", zipped.Header(), err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(z)
	if err != nil || len(families["container_cpu_usage_seconds_total"].GetMetric()) != 1 {
		t.Errorf("%v, %v", families["container_cpu_usage_seconds_total"], err)
	}
	n.Network.Fail(func(string) error { return errors.New("no network") })
	if w := scrape(ctx, n.face.Scrapes(), ""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no network") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestScrapersShareAReading: requests during a reading get its figures; one that leaves takes
// nothing from the others; the next one gets newer figures. A panic fails one answer.
func TestScrapersShareAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readings int
		release := make(chan struct{})
		s := &scrapes{set: metric.New(), metrics: face.Deps{Metrics: obs.New(obs.Options{})}.Counting(), measure: func(ctx context.Context) ([]*measured, error) {
			readings++
			if readings == 3 {
				panic("a broken reading")
			}
			<-release
			return []*measured{{pod: metric.Object{Pod: &v1.PodSandboxMetadata{Name: "p"}, Stats: core.Stats{Pids: core.PidsStats{Processes: core.Known(uint64(readings))}}}}}, ctx.Err()
		}}
		first, leave := context.WithCancel(t.Context())
		gone := make(chan int)
		go func() { gone <- scrape(first, s, "").Code }()
		synctest.Wait()
		answers := make(chan string)
		for range 5 {
			go func() { answers <- scrape(t.Context(), s, "").Body.String() }()
		}
		synctest.Wait()
		leave()
		if code := <-gone; code != http.StatusInternalServerError {
			t.Errorf("who left was answered %d", code)
		}
		close(release)
		for range 5 {
			if a := <-answers; !strings.HasSuffix(a, `pod="p"} 1`+"\n") {
				t.Errorf("answer %q", a)
			}
		}
		if a := scrape(t.Context(), s, "").Body.String(); readings != 2 || !strings.HasSuffix(a, "} 2\n") {
			t.Errorf("%d readings, %q", readings, a)
		}
		if w := scrape(t.Context(), s, ""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "a broken reading") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// BenchmarkScrape writes the metrics of 500 pods.
func BenchmarkScrape(b *testing.B) {
	n := newTestNode(b)
	for i := range 500 {
		n.running(b, n.pod(b, "pod-"+string(rune('a'+i%26))+strings.Repeat("x", i/26)), "c")
	}
	for b.Loop() {
		w := scrape(b.Context(), n.face.Scrapes(), "gzip")
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
		_, _ = io.Copy(io.Discard, w.Body)
	}
}
