package kubelet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/longshore/longshore/test/nodetest"
)

// url is the kubelet's address of a verb on a container.
func (n *node) url(verb, pod, container string, query url.Values) *url.URL {
	return &url.URL{Scheme: "https", Host: nodeIP + ":10250", Path: strings.TrimSuffix("/"+verb+"/default/"+pod+"-node/"+container, "/"), RawQuery: query.Encode()}
}

type executors map[string]func(u *url.URL) (remotecommand.Executor, error)

func (n *node) executors() executors {
	return executors{
		"spdy": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(n.pki.rest(), http.MethodPost, u)
		},
		"websocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(n.pki.rest(), http.MethodGet, u.String())
		},
	}
}

func execQuery(o remotecommand.StreamOptions, command ...string) url.Values {
	q := url.Values{"command": command}
	for key, on := range map[string]bool{"input": o.Stdin != nil, "output": o.Stdout != nil, "error": o.Stderr != nil, "tty": o.Tty} {
		if on {
			q.Set(key, "1")
		}
	}
	return q
}

// exec runs a script in a container, which is to succeed, and returns its output.
func (n *node) exec(t *testing.T, pod, container, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	o := remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}
	e, err := n.executors()["spdy"](n.url("exec", pod, container, execQuery(o, "sh", "-c", script)))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.StreamWithContext(t.Context(), o); err != nil {
		t.Fatalf("exec in %s/%s: %v: %s", pod, container, err, errs.String())
	}
	return out.String()
}

func execs(t *testing.T, n *node) {
	n.run(t, pod("exec", shell("main", idle)))
	for name, executor := range n.executors() {
		run := func(o remotecommand.StreamOptions, script string) error {
			t.Helper()
			e, err := executor(n.url("exec", "exec", "main", execQuery(o, "sh", "-c", script)))
			if err != nil {
				t.Fatal(err)
			}
			return e.StreamWithContext(t.Context(), o)
		}
		var out, errs bytes.Buffer
		err := run(remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}, "echo out; echo err >&2; exit 7")
		var code utilexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 7 || out.String() != "out\n" || errs.String() != "err\n" {
			t.Errorf("%s: %v, %q, %q", name, err, out.String(), errs.String())
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		out.Reset()
		if err := run(remotecommand.StreamOptions{Stdin: bytes.NewReader(data), Stdout: &out}, "cat"); err != nil || sha256.Sum256(out.Bytes()) != sha256.Sum256(data) {
			t.Errorf("%s: 4 MiB through cat: %v, %d bytes came", name, err, out.Len())
		}
		out.Reset()
		if err := run(remotecommand.StreamOptions{Stdin: strings.NewReader("exit\n"), Stdout: &out, Tty: true, TerminalSizeQueue: &oneSize{}}, "tty; until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; stty size"); err != nil {
			t.Errorf("%s: tty: %v", name, err)
		}
		contains(t, out.String(), "/dev/pts/0\r\n", "33 77\r\n")
	}
	// A client without a certificate gets nothing.
	anonymous := n.pki.clientWith()
	if _, err := fetch(t.Context(), anonymous, n.url("exec", "exec", "main", url.Values{"command": {"id"}, "output": {"1"}}).String()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a certificate: %v", err)
	}
}

type oneSize struct{}

func (oneSize) Next() *remotecommand.TerminalSize {
	return &remotecommand.TerminalSize{Width: 77, Height: 33}
}

func attaches(t *testing.T, n *node) {
	c := shell("main", `while read line; do echo "got $line"; [ "$line" = end ] && exit 0; done; echo eof`)
	c.Stdin = true
	p := pod("attach", c)
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	n.run(t, p)
	for name, executor := range n.executors() {
		in, feed := io.Pipe()
		out, sink := io.Pipe()
		o := remotecommand.StreamOptions{Stdin: in, Stdout: sink}
		e, err := executor(n.url("attach", "attach", "main", execQuery(o)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- e.StreamWithContext(ctx, o)
			_ = sink.Close()
		}()
		if _, err := fmt.Fprintln(feed, name); err != nil {
			t.Fatal(err)
		}
		want, got := "got "+name+"\n", ""
		buf := make([]byte, 1024)
		for !strings.Contains(got, want) {
			k, err := out.Read(buf)
			got += string(buf[:k])
			if err != nil {
				t.Errorf("%s: %q came, then %v", name, got, err)
				break
			}
		}
		cancel()
		_ = out.Close()
		<-done
	}
	if s := status(n.pod(t, "attach"), "main"); s.State.Running == nil {
		t.Errorf("leaving ended it: %+v", s.State)
	}
}

func portForwards(t *testing.T, n *node) {
	p := pod("forward", shell("main", "mkdir /www; echo through the kubelet >/www/index.html; exec httpd -f -p 7200 -h /www"))
	p.Spec.Containers[0].ReadinessProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(7200)}}, 1)
	n.run(t, p)
	transport, upgrader, err := spdy.RoundTripperFor(n.pki.rest())
	if err != nil {
		t.Fatal(err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, n.url("portForward", "forward", "", nil))
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(dialer, []string{"0:7200"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		b, err := fetch(t.Context(), http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local))
		if err != nil || string(b) != "through the kubelet\n" {
			t.Errorf("%v, %q", err, b)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func logs(t *testing.T, n *node) {
	p := pod("logs", shell("main", `if [ ! -f /share/been ]; then touch /share/been; echo first life; exit 1; fi
for i in 1 2 3 4 5; do echo line $i; done; echo error >&2; until [ -f /share/go ]; do sleep 0.1; done; echo later; `+idle))
	n.add(t, share(p, emptyDir()))
	n.said(t, "logs", "main", "error")
	if out := n.output(t, "logs", "main", "previous=true"); out != "first life\n" {
		t.Errorf("the life before wrote %q", out)
	}
	if out := n.output(t, "logs", "main", "tailLines=2"); out != "line 5\nerror\n" {
		t.Errorf("the last two lines are %q", out)
	}
	if out := n.output(t, "logs", "main", "limitBytes=8"); out != "line 1\nl" {
		t.Errorf("the first eight bytes are %q", out)
	}
	contains(t, n.output(t, "logs", "main", "timestamps=true&tailLines=1"), "Z error\n")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.url("containerLogs", "logs", "main", url.Values{"follow": {"true"}, "tailLines": {"1"}}).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n.exec(t, "logs", "main", "touch /share/go")
	want := "error\nlater\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
		t.Errorf("following: %v, %q", err, got)
	}
}

// summary is the kubelet's /stats/summary.
func (n *node) summary(t *testing.T) stats.Summary {
	t.Helper()
	var s stats.Summary
	b, err := n.get(t.Context(), "/stats/summary")
	if err != nil {
		t.Logf("summary: %v", err)
		return s
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// figures checks the figures that the kubelet gathers from cgroups by itself, as it does by
// default.
func figures(t *testing.T, n *node) { n.figures(t, false) }

// figures checks /stats/summary. With whole, for a kubelet with the gates EventedPLEG and
// PodAndContainerStatsFromCRI, it also checks the figures that only the runtime has, and the
// connection for events.
func (n *node) figures(t *testing.T, whole bool) {
	t.Helper()
	c := limited(shell("main", "dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; subject eat 20 & while :; do :; done"), "64Mi")
	n.run(t, pod("figures", c))
	var last stats.Summary
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := json.MarshalIndent(last.Pods, "", " ")
			t.Logf("the last figures: %s", b)
		}
	})
	nodetest.Eventually(t, "figures of the pod", func() bool {
		last = n.summary(t)
		for _, p := range last.Pods {
			if p.PodRef.Name != "figures-node" || len(p.Containers) != 1 || p.CPU == nil || p.Memory == nil || p.EphemeralStorage == nil {
				continue
			}
			c := p.Containers[0]
			if whole && (p.Network == nil || p.Network.RxBytes == nil || p.ProcessStats == nil || value(p.ProcessStats.ProcessCount) < 2) {
				return false
			}
			return value(c.CPU.UsageNanoCores) > 1e6 && value(p.CPU.UsageNanoCores) > 1e6 && value(c.Memory.WorkingSetBytes) > 20<<20 && value(p.Memory.WorkingSetBytes) > 20<<20 &&
				value(c.Rootfs.UsedBytes) >= 3<<20 && value(p.EphemeralStorage.UsedBytes) >= 3<<20
		}
		return false
	})
	b, err := n.get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var connected bool
	for line := range strings.Lines(string(b)) {
		connected = connected || strings.HasPrefix(line, "kubelet_evented_pleg_connection_success_count") && !strings.HasSuffix(line, " 0\n")
	}
	if whole && !connected {
		t.Error("the kubelet does not listen to the runtime's events")
	}
	if b, err = n.get(t.Context(), "/metrics/resource"); err != nil {
		t.Fatal(err)
	}
	contains(t, string(b), `container_cpu_usage_seconds_total{container="main",namespace="default",pod="figures-node"}`, `pod_memory_working_set_bytes{namespace="default",pod="figures-node"}`)
}

func value(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}
