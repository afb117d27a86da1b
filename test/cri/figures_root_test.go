package cri

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// mayBeUntold are metrics that depend on the kernel: block devices that count,
// pressure and huge pages, which only one version of cgroups tells.
var mayBeUntold = []string{"container_blkio_", "container_fs_reads_", "container_fs_writes_", "container_hugetlb_", "container_pressure_"}

// TestFiguresWithCrictl: crictl prints a pod's usage, as kubelet would read it.
func TestFiguresWithCrictl(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		c := newTool(t, n)
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		c.run("pull", ref)
		pod := c.file("pod.json", object{
			"metadata": object{"name": "web", "namespace": "default", "uid": "u1"},
			"linux":    object{"security_context": object{"namespace_options": object{"pid": 1}}},
		})
		podID := c.run("runp", pod)
		id := c.run("create", podID, c.file("container.json", object{
			"metadata": object{"name": "app"}, "image": object{"image": ref, "user_specified_image": "busybox"},
			"command": []string{"/bin/sh", "-c", "head -c 100000 /dev/zero > /file; sleep 1000 & exec sleep 1000"},
			"linux": object{"resources": object{
				"cpu_period": 100000, "cpu_quota": 20000, "cpu_shares": 1024, "memory_limit_in_bytes": 64 << 20, "memory_swap_limit_in_bytes": 64 << 20,
			}},
		}), pod)
		c.run("start", id)
		nodetest.Eventually(t, "the program has written its file", func() bool {
			return c.run("exec", "-s", id, "/bin/stat", "-c", "%s", "/file") == "100000"
		})
		t.Run("metrics", func(t *testing.T) { figuresMetrics(t, c, podID, id) })
		t.Run("pod", func(t *testing.T) { figuresPod(t, c, podID) })
		c.run("rmp", "-f", podID)
		n.Check()
	})
}

func figuresMetrics(t *testing.T, c tool, podID, id string) {
	var descs struct {
		Descriptors []struct {
			Name, Help string
			LabelKeys  []string
		}
	}
	decode(t, c.run("metricdescs"), &descs)
	type metric struct {
		Name        string
		LabelValues []string
		Value       struct{ Value string }
	}
	var told struct {
		PodMetrics []struct {
			PodSandboxID     string
			Metrics          []metric
			ContainerMetrics []struct {
				ContainerID string
				Metrics     []metric
			}
		}
	}
	decode(t, c.run("metricsp"), &told)
	if len(told.PodMetrics) != 1 || told.PodMetrics[0].PodSandboxID != podID || len(told.PodMetrics[0].ContainerMetrics) != 1 || told.PodMetrics[0].ContainerMetrics[0].ContainerID != id {
		t.Fatalf("metricsp: %+v", told)
	}
	got := map[string]metric{}
	for _, m := range slices.Concat(told.PodMetrics[0].Metrics, told.PodMetrics[0].ContainerMetrics[0].Metrics) {
		got[m.Name] = m
	}
	for _, d := range descs.Descriptors {
		m, ok := got[d.Name]
		if !ok {
			if !slices.ContainsFunc(mayBeUntold, func(p string) bool { return strings.HasPrefix(d.Name, p) }) {
				t.Errorf("no %s", d.Name)
			}
			continue
		}
		if d.Help == "" || len(m.LabelValues) != len(d.LabelKeys) || len(d.LabelKeys) < 6 {
			t.Errorf("%+v does not go with %+v", m, d)
		}
	}
	shares := "1024"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		shares = "999" // v2 holds a weight, 39 of 10000, which is this many shares
	}
	for name, want := range map[string]string{
		"container_spec_cpu_quota": "20000", "container_spec_cpu_period": "100000", "container_spec_cpu_shares": shares,
		"container_spec_memory_limit_bytes": "67108864", "container_processes": "2", "container_threads": "2",
	} {
		if got := got[name].Value.Value; got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if got := got["container_memory_usage_bytes"].LabelValues; len(got) != 6 || got[0] != "app" || got[3] != id || got[4] != "default" || got[5] != "web" {
		t.Errorf("labels %q", got)
	}
}

func figuresPod(t *testing.T, c tool, podID string) {
	type number struct{ Value string }
	var pods struct {
		Stats []struct {
			Attributes struct{ ID string }
			Linux      struct {
				CPU     struct{ UsageCoreNanoSeconds number }
				Memory  struct{ WorkingSetBytes, UsageBytes, RssBytes number }
				Network struct {
					DefaultInterface struct {
						Name             string
						RxBytes, TxBytes number
					}
				}
				Process    struct{ ProcessCount number }
				Containers []struct {
					CPU           struct{ UsageCoreNanoSeconds, UsageNanoCores number }
					Swap          struct{ SwapUsageBytes number }
					WritableLayer struct{ UsedBytes, InodesUsed number }
				}
			}
		}
	}
	c.json(&pods, "statsp", "-o", "json")
	if len(pods.Stats) != 1 || pods.Stats[0].Attributes.ID != podID || len(pods.Stats[0].Linux.Containers) != 1 {
		t.Fatalf("statsp: %+v", pods)
	}
	l := pods.Stats[0].Linux
	if l.CPU.UsageCoreNanoSeconds.Value == "" || l.Memory.UsageBytes.Value == "" || l.Memory.WorkingSetBytes.Value == "" || l.Memory.RssBytes.Value == "" {
		t.Errorf("cpu and memory: %+v", l)
	}
	if l.Network.DefaultInterface.Name != "eth0" || l.Network.DefaultInterface.RxBytes.Value == "" {
		t.Errorf("network: %+v", l.Network)
	}
	if l.Process.ProcessCount.Value != "2" {
		t.Errorf("processes: %+v", l.Process)
	}
	if w := l.Containers[0].WritableLayer; len(w.UsedBytes.Value) < len("100000") {
		t.Errorf("writable layer: %+v", w)
	}
	// With two reads at least a second apart crictl shows the present use.
	if out := c.run("stats", "-s", "1"); !strings.Contains(out, "app") {
		t.Errorf("stats:\n%s", out)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}
