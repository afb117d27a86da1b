package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/utils/ptr"
)

func streamChecks() []check {
	return []check{
		{"logs that are followed", logsFollowed},
		{"logs by tail, bytes and time", logsParts},
		{"logs of the life before", logsPrevious},
		{"logs of an init container and of several", logsOfAll},
		{"long lines of a log are whole", logsLong},
		{"exec: streams and exit codes", execCodes},
		{"exec: a large input comes back", execLarge},
		{"exec: a terminal and its size", execTerminal},
		{"exec: a program that is not there", execMissing},
		{"exec: many at a time", execMany},
		{"attach", attaches},
		{"port-forward", portForwards},
		{"port-forward to a port that nobody serves", portForwardRefused},
		{"an ephemeral container", ephemeral},
		{"a container's end ends its streams", streamsEnd},
	}
}

func logsFollowed(t *testing.T, s *space) {
	s.run(t, shared(pod("follow", shell("main", `i=0; until [ -f /share/stop ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo end; `+idle))))
	s.said(t, "follow", "main", "line 20\n")
	s.sh(t, "follow", "touch /share/stop")
	out := s.said(t, "follow", "main", "end\n")
	for i, line := range strings.Split(strings.TrimSuffix(out, "end\n"), "\n") {
		if line != "" && line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

func logsParts(t *testing.T, s *space) {
	s.run(t, pod("parts", shell("main", `for i in 1 2 3 4 5; do echo line $i; done; `+idle)))
	s.said(t, "parts", "main", "line 5\n")
	for want, o := range map[string]corev1.PodLogOptions{
		"line 4\nline 5\n": {TailLines: ptr.To(int64(2))},
		"line 1\nl":        {LimitBytes: ptr.To(int64(8))},
		"":                 {SinceTime: ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))},
	} {
		if got := s.output(t, "parts", &o); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
	if got := s.output(t, "parts", &corev1.PodLogOptions{Timestamps: true, TailLines: ptr.To(int64(1))}); !strings.HasSuffix(got, "Z line 5\n") {
		t.Errorf("%q", got)
	}
}

func logsPrevious(t *testing.T, s *space) {
	s.create(t, s.ns, shared(pod("previous", shell("main", `if [ ! -f /share/been ]; then touch /share/been; echo first life; exit 1; fi; echo second life; `+idle))))
	s.wait(t, "previous", "has started again", func(p *corev1.Pod) bool { return state(p, "main").RestartCount == 1 && ready(p) })
	if got := s.output(t, "previous", &corev1.PodLogOptions{Previous: true}); got != "first life\n" {
		t.Errorf("before: %q", got)
	}
	s.said(t, "previous", "main", "second life\n")
}

func logsOfAll(t *testing.T, s *space) {
	p := pod("all", shell("main", "echo main; "+idle), shell("other", "echo other >&2; "+idle))
	p.Spec.InitContainers = []corev1.Container{shell("init", "echo init")}
	s.run(t, p)
	for _, name := range []string{"init", "main", "other"} {
		if got := s.said(t, "all", name, "\n"); got != name+"\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func logsLong(t *testing.T, s *space) {
	out := s.succeeds(t, once("long", `yes 0123456789 | head -n 10000 | tr -d '\n'; echo; echo after`))
	if want := strings.Repeat("0123456789", 10000) + "\nafter\n"; out != want {
		t.Errorf("%d bytes, want %d", len(out), len(want))
	}
}

// stream runs a script in main by one of the executors.
func (s *space) stream(ctx context.Context, by, pod string, o remotecommand.StreamOptions, script string) error {
	e, err := s.executors()[by](s.execURL("exec", pod, "main", o, "sh", "-c", script))
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, o)
}

func execCodes(t *testing.T, s *space) {
	s.run(t, pod("exec", sleeper("main")))
	for by := range s.executors() {
		var out, errs bytes.Buffer
		err := s.stream(t.Context(), by, "exec", remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}, "echo out; echo err >&2; exit 7")
		var code utilexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 7 || out.String() != "out\n" || errs.String() != "err\n" {
			t.Errorf("%s: %v, %q, %q", by, err, out.String(), errs.String())
		}
	}
}

func execLarge(t *testing.T, s *space) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	for i, n := range s.nodes {
		name := "on-" + n.name
		s.run(t, on(n, pod(name, sleeper("main"))))
		var out bytes.Buffer
		by := []string{"spdy", "websocket"}[i]
		err := s.stream(t.Context(), by, name, remotecommand.StreamOptions{Stdin: bytes.NewReader(data), Stdout: &out}, "cat")
		if err != nil || sha256.Sum256(out.Bytes()) != sha256.Sum256(data) {
			t.Errorf("%s: %v, %d bytes of %d came back", by, err, out.Len(), len(data))
		}
	}
}

// sizes gives a terminal one size.
type sizes struct{ once sync.Once }

func (s *sizes) Next() (size *remotecommand.TerminalSize) {
	s.once.Do(func() { size = &remotecommand.TerminalSize{Width: 77, Height: 33} })
	return size
}

func execTerminal(t *testing.T, s *space) {
	s.run(t, pod("tty", sleeper("main")))
	for by := range s.executors() {
		var out bytes.Buffer
		o := remotecommand.StreamOptions{Stdin: strings.NewReader("exit\n"), Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{}}
		err := s.stream(t.Context(), by, "tty", o, "tty; until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; stty size")
		if err != nil || !strings.Contains(out.String(), "/dev/pts/0\r\n") || !strings.Contains(out.String(), "33 77\r\n") {
			t.Errorf("%s: %v, %q", by, err, out.String())
		}
	}
}

func execMissing(t *testing.T, s *space) {
	s.run(t, pod("exec", sleeper("main")))
	if _, err := s.try(t.Context(), "exec", "main", "no-such-program"); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("%v", err)
	}
}

func execMany(t *testing.T, s *space) {
	s.run(t, pod("many", sleeper("main")))
	var wg sync.WaitGroup
	failed := make(chan error, 20)
	for i := range 20 {
		wg.Go(func() {
			out, err := s.try(t.Context(), "many", "main", "sh", "-c", fmt.Sprintf("echo %d", i))
			if err != nil || out != fmt.Sprintln(i) {
				failed <- fmt.Errorf("%d: %w, %q", i, err, out)
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}

func attaches(t *testing.T, s *space) {
	c := shell("main", `while read line; do echo "got $line"; [ "$line" = end ] && exit 0; done; echo eof`)
	c.Stdin = true
	p := pod("attach", c)
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.run(t, p)
	for by, executor := range s.executors() {
		in, feed := io.Pipe()
		out, sink := io.Pipe()
		o := remotecommand.StreamOptions{Stdin: in, Stdout: sink}
		e, err := executor(s.execURL("attach", "attach", "main", o))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- e.StreamWithContext(ctx, o)
			_ = sink.Close()
		}()
		go func() { _, _ = fmt.Fprintln(feed, by) }()
		var got strings.Builder
		buf := make([]byte, 1024)
		for !strings.Contains(got.String(), "got "+by+"\n") {
			k, err := out.Read(buf)
			got.Write(buf[:k])
			if err != nil {
				t.Errorf("%s: %q, then %v", by, got.String(), err)
				break
			}
		}
		cancel()
		_ = out.Close()
		<-done
	}
	if e := state(s.wait(t, "attach", "is there", func(*corev1.Pod) bool { return true }), "main"); e.State.Running == nil {
		t.Errorf("leaving ended it: %+v", e.State)
	}
}

// dialer reaches the port-forward of a pod.
func (s *space) dialer(t *testing.T, pod string) httpstream.Dialer {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	u := s.execURL("portforward", pod, "", remotecommand.StreamOptions{})
	u.RawQuery = ""
	return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
}

// forward opens a port of this process that leads to a pod's, until the test ends.
func (s *space) forward(t *testing.T, pod string, port int) (url string) {
	t.Helper()
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(s.dialer(t, pod), []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
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
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local)
}

func portForwards(t *testing.T, s *space) {
	for _, n := range s.nodes {
		name := "on-" + n.name
		s.run(t, on(n, pod(name, peer())))
		url := s.forward(t, name, 8080)
		for range 5 {
			if got, err := get(t.Context(), url); err != nil || got != name+" 127.0.0.1\n" && got != name+" ::1\n" {
				t.Errorf("%v, %q", err, got)
			}
		}
	}
}

func portForwardRefused(t *testing.T, s *space) {
	s.run(t, pod("forward", peer()))
	conn, _, err := s.dialer(t, "forward").Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	headers := http.Header{}
	headers.Set(corev1.PortHeader, "9")
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	errs, err := conn.CreateStream(headers)
	if err != nil {
		t.Fatal(err)
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	if _, err := conn.CreateStream(headers); err != nil {
		t.Fatal(err)
	}
	if why, err := io.ReadAll(errs); err != nil || !strings.Contains(string(why), "refused") {
		t.Errorf("%v, %q", err, why)
	}
}

func ephemeral(t *testing.T, s *space) {
	s.run(t, pod("debugged", shell("main", "exec sleep 87654")))
	patch(t, s.cluster, pods(s.ns, "debugged"), fmt.Sprintf(`{"spec":{"ephemeralContainers":[{"name":"debug","image":%q,"targetContainerName":"main","stdin":true,"command":["sh","-c","ps; read x; echo got $x"]}]}}`, busybox), "ephemeralcontainers")
	s.wait(t, "debugged", "has its container", func(p *corev1.Pod) bool { return state(p, "debug").State.Running != nil })
	if out := s.said(t, "debugged", "debug", "got $x\n"); !strings.Contains(out, "sleep 87654") {
		t.Errorf("it does not see its target: %q", out)
	}
	var out bytes.Buffer
	o := remotecommand.StreamOptions{Stdin: strings.NewReader("it\n"), Stdout: &out}
	e, err := s.executors()["websocket"](s.execURL("attach", "debugged", "debug", o))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.StreamWithContext(t.Context(), o); err != nil || out.String() != "got it\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	p := s.wait(t, "debugged", "has seen its end", func(p *corev1.Pod) bool { return state(p, "debug").State.Terminated != nil })
	if state(p, "main").RestartCount != 0 || !ready(p) {
		t.Errorf("%+v", p.Status.ContainerStatuses)
	}
}

func streamsEnd(t *testing.T, s *space) {
	s.run(t, pod("ends", sleeper("main")))
	done := make(chan error, 1)
	go func() {
		done <- s.stream(t.Context(), "websocket", "ends", remotecommand.StreamOptions{Stdout: io.Discard}, "sleep 100000")
	}()
	eventually(t, "the exec runs", func() bool { return strings.Contains(s.sh(t, "ends", "ps"), "sleep 100000") })
	remove(t, s.cluster, pods(s.ns, "ends"))
	gone(t, s.cluster, pods(s.ns, "ends"))
	if err := <-done; err == nil {
		t.Error("the exec ended well")
	}
}
