package systemd

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	manifests = "/etc/kubernetes/manifests"
	kubelet   = "kubelet.service"
)

// TestKubelet runs the real kubelet with static pods over the unit's restarts.
func TestKubelet(t *testing.T) {
	g := newGuest(t)
	program := filepath.Join(nodetest.Bin(t), "kubelet")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("no kubelet: KUBELET=path hack/vm.sh systemd (test/e2e/kubelet builds one)")
	}
	g.run("systemctl", "start", "longshore.socket", "longshore-cri.socket", agent)
	image := g.Busybox(t)
	g.kubelet(program)
	for _, name := range []string{"one", "two"} {
		g.write(filepath.Join(manifests, name+".json"), staticPod(name, image))
	}
	want := []string{"one/main/0", "one/side/0", "two/main/0", "two/side/0"}
	nodetest.Eventually(t, "the static pods run", func() bool { return slices.Equal(g.names(), want) })
	was := g.mains()
	limits := g.limits()
	for _, d := range []struct {
		name string
		do   func()
	}{
		{"daemon-reload", func() { g.run("systemctl", "daemon-reload") }},
		{"restart", func() { g.run("systemctl", "restart", agent) }},
		{"kill", g.kill},
		{"restart of the kubelet", func() { g.run("systemctl", "restart", kubelet) }},
	} {
		t.Run(d.name, func(t *testing.T) {
			g := g
			g.t = t
			d.do()
			g.serves()
			probes := g.probes()
			nodetest.Eventually(t, "probes go on", func() bool {
				now := g.probes()
				return now["one"] > probes["one"]+1 && now["two"] > probes["two"]+1
			})
			if got := g.names(); !slices.Equal(got, want) {
				t.Errorf("pods: %v", got)
			}
			if now := g.mains(); !slices.Equal(now, was) {
				t.Errorf("containers were %v, and are %v", was, now)
			}
			if now := g.limits(); now != limits {
				t.Errorf("limits were\n%s\nand are\n%s", limits, now)
			}
			g.Check()
		})
	}
	for _, name := range []string{"one", "two"} {
		if err := os.Remove(filepath.Join(manifests, name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	nodetest.Eventually(t, "the kubelet takes the pods away", func() bool {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/kubepods.slice/*.slice/*-pod*.slice")
		return len(g.names()) == 0 && len(dirs) == 0
	})
	g.run("systemctl", "stop", kubelet)
	g.Check()
	if units := g.run("systemctl", "list-units", "--no-legend", "--plain", "longshore-*.service"); units != "" {
		t.Errorf("units left:\n%s", units)
	}
}

// kubelet installs a kubelet without an API server as a unit, and waits until it
// is healthy.
func (g guest) kubelet(program string) {
	g.t.Helper()
	for _, args := range [][]string{
		{"link", "add", "node0", "type", "bridge"},
		{"address", "add", "198.51.100.1/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
		{"route", "add", "default", "via", "198.51.100.254"},
	} {
		g.run("ip", args...)
	}
	g.marshal("/etc/kubernetes/kubelet.json", map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix:///run/longshore/cri.sock",
		"staticPodPath":            manifests,
		"fileCheckFrequency":       "1s",
		"cgroupDriver":             "systemd",
		"failSwapOn":               false,
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"featureGates":             map[string]bool{"EventedPLEG": true, "MemoryQoS": true},
		"memoryThrottlingFactor":   0.9, "memoryReservationPolicy": "TieredReservation",
		"evictionHard": map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
		// The guest is slow.
		"runtimeRequestTimeout": "10m",
	})
	for _, dir := range []string{manifests, "/var/lib/kubelet"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			g.t.Fatal(err)
		}
	}
	g.write("/etc/systemd/system/"+kubelet, fmt.Sprintf(`[Unit]
Wants=longshore.service
After=longshore.service
[Service]
ExecStart=%s --config=/etc/kubernetes/kubelet.json --hostname-override=node --node-ip=198.51.100.1
Restart=always
KillMode=process
`, program))
	g.run("systemctl", "daemon-reload")
	g.run("systemctl", "start", kubelet)
	g.t.Cleanup(func() {
		if g.t.Failed() {
			out, _ := exec.Command("journalctl", "-b", "-u", kubelet, "-n", "150", "-o", "cat", "--no-pager").CombinedOutput() //nolint:forbidigo // the test is over
			g.t.Logf("the kubelet:\n%s", out)
		}
	})
	nodetest.Eventually(g.t, "the kubelet is healthy", func() bool {
		req, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, "http://127.0.0.1:10248/healthz", nil)
		if err != nil {
			g.t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

func (g guest) marshal(path string, v any) {
	g.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		g.t.Fatal(err)
	}
	g.write(path, string(b))
}

// staticPod has two containers; the liveness probe of one leaves a trace in its
// log, and needs a device.
func staticPod(name, image string) string {
	container := func(name string, more map[string]any) map[string]any {
		c := map[string]any{
			"name": name, "image": image, "imagePullPolicy": "IfNotPresent",
			"command":   []string{"/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"},
			"resources": map[string]any{"requests": map[string]string{"cpu": "50m", "memory": "16Mi"}, "limits": map[string]string{"memory": "64Mi"}},
		}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	probe := map[string]any{
		"exec":          map[string]any{"command": []string{"/bin/sh", "-c", "head -c 1 /dev/zero >/dev/null && echo probed >/proc/1/fd/1"}},
		"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60,
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 5,
			"containers": []any{
				container("main", map[string]any{"livenessProbe": probe}),
				container("side", nil),
			},
		},
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (g guest) containers() []*v1.Container {
	g.t.Helper()
	list, err := g.CRI.ListContainers(g.t.Context(), &v1.ListContainersRequest{})
	if err != nil {
		g.t.Fatal(err)
	}
	return list.GetContainers()
}

// names are pod, container and attempt of every container there is, sorted.
func (g guest) names() []string {
	g.t.Helper()
	var names []string
	for _, c := range g.containers() {
		pod := strings.TrimSuffix(c.GetLabels()["io.kubernetes.pod.name"], "-node")
		name := fmt.Sprintf("%s/%s/%d", pod, c.GetMetadata().GetName(), c.GetMetadata().GetAttempt())
		if c.GetState() != v1.ContainerState_CONTAINER_RUNNING {
			name += " " + c.GetState().String()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// mains are the ids and first processes of all containers, sorted.
func (g guest) mains() []string {
	g.t.Helper()
	var mains []string
	for _, c := range g.containers() {
		mains = append(mains, c.GetId()+" "+g.pid(c.GetId()))
	}
	slices.Sort(mains)
	return mains
}

// limits are the memory limits by kubelet's requests, of each container and the cgroups above it up to the pod's, among
// them units of systemd's. A kubelet that starts resets those of its own slices for a while.
func (g guest) limits() string {
	g.t.Helper()
	const top = "/sys/fs/cgroup"
	all := map[string]bool{}
	for _, c := range g.containers() {
		pid := g.pid(c.GetId())
		b, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
		if err != nil {
			g.t.Fatal(err)
		}
		_, own, found := strings.Cut(strings.TrimSpace(string(b)), "0::/")
		if !found || !strings.HasPrefix(own, "kubepods.slice/kubepods-burstable.slice/") {
			g.t.Fatalf("process %s is in cgroup %q", pid, b)
		}
		// 16 MiB are requested of 64 MiB, and kubelet leaves a tenth of the difference.
		if got, want := memory(g, filepath.Join(top, own)), "max=67108864 high=62074880 low=16777216 min=0"; got != want {
			g.t.Errorf("%s has %s, want %s", own, got, want)
		}
		for ; own != "kubepods.slice/kubepods-burstable.slice"; own = filepath.Dir(own) {
			all[own+": "+memory(g, filepath.Join(top, own))] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), "\n")
}

func memory(g guest, dir string) string {
	g.t.Helper()
	var values []string
	for _, name := range []string{"max", "high", "low", "min"} {
		b, err := os.ReadFile(filepath.Join(dir, "memory."+name))
		if err != nil {
			g.t.Fatal(err)
		}
		values = append(values, name+"="+strings.TrimSpace(string(b)))
	}
	return strings.Join(values, " ")
}

// probes counts the pods' probes in their logs.
func (g guest) probes() map[string]int {
	g.t.Helper()
	counts := map[string]int{}
	for _, c := range g.containers() {
		st, err := g.CRI.ContainerStatus(g.t.Context(), &v1.ContainerStatusRequest{ContainerId: c.GetId()})
		if err != nil {
			g.t.Fatal(err)
		}
		b, err := os.ReadFile(st.GetStatus().GetLogPath())
		if err != nil {
			g.t.Fatal(err)
		}
		counts[strings.TrimSuffix(c.GetLabels()["io.kubernetes.pod.name"], "-node")] += strings.Count(string(b), "probed")
	}
	return counts
}
