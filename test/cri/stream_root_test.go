package cri

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/websocket"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// protocols are how a client may have its streams: "" is SPDY.
func protocols() []string { return []string{"", "v5.channel.k8s.io", "v4.channel.k8s.io"} }

// TestStreams has Exec, Attach and PortForward used as kubelet's and crictl's
// users do, over SPDY and websockets.
func TestStreams(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		s := &streamSuite{n: streamNode{n}, crictl: newTool(t, n), image: n.Busybox(t)}
		s.pod = n.RunPod(t, n.PodConfig("streams"))
		s.c = s.pod.Run(t, nodetest.ContainerConfig("c", s.image, "/bin/sleep", "100000"))
		for _, p := range protocols() {
			name := p
			if name == "" {
				name = "spdy"
			}
			t.Run("exec "+name, func(t *testing.T) { s.exec(t, p) })
			t.Run("tty "+name, func(t *testing.T) { s.tty(t, p) })
			t.Run("attach "+name, func(t *testing.T) { s.attach(t, p) })
		}
		t.Run("crictl", s.byCrictl)
		t.Run("stdin once", s.stdinOnce)
		t.Run("killed with its client", s.killed)
		t.Run("urls", s.urls)
		t.Run("port forward", s.portForward)
		t.Run("port forward to the host's network", s.hostNetwork)
		t.Run("exec sync ends its children", s.execSync)
		s.pod.Remove(t)
		n.Check()
	})
}

type streamSuite struct {
	n      streamNode
	crictl tool
	image  string
	pod    *nodetest.Pod
	c      *nodetest.Container
}

func (s *streamSuite) exec(t *testing.T, protocol string) {
	x := s.n.exec(t, s.c.ID, want{websocket: protocol}, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
	if code, text := x.status(t); code != 7 || x.stdout.String() != "out\n" || x.stderr.String() != "err\n" {
		t.Errorf("code %d (%s), stdout %q, stderr %q", code, text, x.stdout, x.stderr)
	}
	x = s.n.exec(t, s.c.ID, want{websocket: protocol}, "/bin/true")
	if code, text := x.status(t); code != 0 {
		t.Errorf("code %d (%s)", code, text)
	}
	x = s.n.exec(t, s.c.ID, want{websocket: protocol}, "/no/such/program")
	if code, text := x.status(t); code != -1 || !strings.Contains(text, "/no/such/program") {
		t.Errorf("missing program: code %d (%s)", code, text)
	}
	// No byte of the last output is lost, though the input is not read.
	const size = 20_000_000
	x = s.n.exec(t, s.c.ID, want{websocket: protocol, stdin: true}, "/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero; echo end", size))
	if err := x.write(make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	if code, text := x.status(t); code != 0 || x.stdout.data.Len() != size+len("end\n") {
		t.Errorf("code %d (%s), %d bytes, want %d", code, text, x.stdout.data.Len(), size+len("end\n"))
	}
	if protocol == "v4.channel.k8s.io" {
		return // has no half-close
	}
	data := make([]byte, 3_000_000)
	_, _ = rand.Read(data)
	sum := sha256.Sum256(data)
	x = s.n.exec(t, s.c.ID, want{websocket: protocol, stdin: true}, "/bin/sha256sum")
	for b := range slices.Chunk(data, 30_000) {
		if err := x.write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.closeStdin(); err != nil {
		t.Fatal(err)
	}
	if code, text := x.status(t); code != 0 || x.stdout.String() != hex.EncodeToString(sum[:])+"  -\n" {
		t.Errorf("code %d (%s), %q, want %x", code, text, x.stdout, sum)
	}
}

func (s *streamSuite) tty(t *testing.T, protocol string) {
	x := s.n.exec(t, s.c.ID, want{websocket: protocol, stdin: true, tty: true}, "/bin/sh")
	if err := x.resize(91, 37); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the terminal has its size", func() bool {
		_ = x.write([]byte("stty size; tty\n"))
		return strings.Contains(x.stdout.String(), "37 91\r\n") && strings.Contains(x.stdout.String(), "/dev/pts/")
	})
	_ = x.write([]byte("echo $TERM; exit 5\n"))
	if code, text := x.status(t); code != 5 || !strings.Contains(x.stdout.String(), "xterm\r\n") {
		t.Errorf("code %d (%s):\n%s", code, text, x.stdout)
	}
}

func (s *streamSuite) attach(t *testing.T, protocol string) {
	for _, tty := range []bool{false, true} {
		for _, logged := range []bool{true, false} {
			t.Run(fmt.Sprintf("tty %v log %v", tty, logged), func(t *testing.T) {
				cfg := nodetest.ContainerConfig(fmt.Sprintf("a-%s-%v-%v", protocol, tty, logged), s.image, "/bin/sh")
				cfg.Stdin, cfg.Tty = true, tty
				if !logged {
					cfg.LogPath = ""
				}
				c := s.pod.Run(t, cfg)
				w := want{websocket: protocol, stdin: true, tty: tty}
				x := s.n.attach(t, c.ID, w)
				if err := x.write([]byte("echo one; echo two >&2; printf part\n")); err != nil {
					t.Fatal(err)
				}
				nodetest.Eventually(t, "the answer", func() bool {
					if tty {
						return strings.Contains(x.stdout.String(), "one\r\ntwo\r\npart")
					}
					return x.stdout.String() == "one\npart" && x.stderr.String() == "two\n"
				})
				x.cut()
				<-x.done
				// The container has not noticed, and takes the next one's input.
				y := s.n.attach(t, c.ID, w)
				_ = y.write([]byte("echo again; exit 3\n"))
				if code, text := y.status(t); code != 0 || !strings.Contains(y.stdout.String(), "again") {
					t.Errorf("code %d (%s): %q", code, text, y.stdout)
				}
				if st := c.WaitExited(t); st.GetExitCode() != 3 {
					t.Errorf("ended with %d", st.GetExitCode())
				}
				_, err := s.n.CRI.Attach(t.Context(), &v1.AttachRequest{ContainerId: c.ID, Stdout: true})
				if status.Code(err) != codes.FailedPrecondition {
					t.Errorf("attach to what has ended: %v", err)
				}
			})
		}
	}
}

func (s *streamSuite) byCrictl(t *testing.T) {
	for _, transport := range []string{"spdy", "websocket"} {
		c := s.crictl
		c.t = t
		out, errs, err := c.try("exec", "-r", transport, s.c.ID, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || out != "out\n" || !strings.HasPrefix(errs, "err\n") || !strings.Contains(errs, "7") {
			t.Errorf("%s: %v, %q, %q", transport, err, out, errs)
		}
		c.stdin = strings.NewReader("from outside\n")
		if out := c.run("exec", "-r", transport, "-i", s.c.ID, "/bin/cat"); out != "from outside" {
			t.Errorf("%s: cat: %q", transport, out)
		}
		cfg := nodetest.ContainerConfig("crictl-"+transport, s.image, "/bin/sh")
		cfg.Stdin, cfg.StdinOnce = true, true
		a := s.pod.Run(t, cfg)
		c.stdin = strings.NewReader("echo attached; exit 0\n")
		if out := c.run("attach", "-r", transport, "-i", a.ID); out != "attached" {
			t.Errorf("%s: attach: %q", transport, out)
		}
		c.stdin = nil
		s.crictlForward(t, c, transport)
	}
}

// crictlForward fetches a file through crictl port-forward.
func (s *streamSuite) crictlForward(t *testing.T, c tool, transport string) {
	cfg := nodetest.ContainerConfig("web-"+transport, s.image, "/bin/sh", "-c", "echo served > /index.html; exec httpd -f -p 127.0.0.1:8080 -h /")
	web := s.pod.Run(t, cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), c.bin, "--config", filepath.Join(c.n.Dir, "crictl.yaml"), "port-forward", "-r", transport, s.pod.ID, port+":8080")
	cmd.Env = append(os.Environ(), "HOME="+c.n.Dir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	nodetest.Eventually(t, "the file through "+transport, func() bool {
		resp, err := http.Get("http://127.0.0.1:" + port + "/index.html") //nolint:noctx // a test's
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		got, err = io.ReadAll(resp.Body)
		return err == nil && string(got) == "served\n"
	})
	http.DefaultClient.CloseIdleConnections()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := s.n.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: web.ID}); err != nil {
		t.Error(err)
	}
}

// stdinOnce: the input of such a container ends with its first client.
func (s *streamSuite) stdinOnce(t *testing.T) {
	for _, once := range []bool{true, false} {
		cfg := nodetest.ContainerConfig("once-"+strconv.FormatBool(once), s.image, "/bin/sh", "-c", "cat; echo ended; while :; do sleep 0.02; done")
		cfg.Stdin, cfg.StdinOnce = true, once
		c := s.pod.Run(t, cfg)
		x := s.n.attach(t, c.ID, want{stdin: true})
		if err := x.write([]byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the echo", func() bool { return x.stdout.String() == "hello\n" })
		if err := x.closeStdin(); err != nil {
			t.Fatal(err)
		}
		if once {
			nodetest.Eventually(t, "the end of the input", func() bool { return x.stdout.String() == "hello\nended\n" })
			x.cut()
			continue
		}
		x.cut()
		<-x.done
		y := s.n.attach(t, c.ID, want{stdin: true})
		_ = y.write([]byte("more\n"))
		nodetest.Eventually(t, "the next client's input", func() bool { return y.stdout.String() == "more\n" })
	}
}

// killed: an exec ends with its client, and so do its children; other processes of the
// container do not.
func (s *streamSuite) killed(t *testing.T) {
	for i, tty := range []bool{false, true} {
		mark := strconv.Itoa(70_000 + i)
		x := s.n.exec(t, s.c.ID, want{tty: tty, stdin: true}, "/bin/sh", "-c", "(trap '' HUP; sleep "+mark+") & sleep "+mark+" & echo on; wait")
		nodetest.Eventually(t, "it runs", func() bool { return strings.Contains(x.stdout.String(), "on") })
		x.cut()
		nodetest.Eventually(t, "nothing of it is left", func() bool { return len(nodetest.Processes("sleep", mark)) == 0 })
	}
	if c := s.c.Status(t); c.GetState() != v1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %s", c.GetState())
	}
}

func (s *streamSuite) urls(t *testing.T) {
	r, err := s.n.CRI.Exec(t.Context(), &v1.ExecRequest{ContainerId: s.c.ID, Cmd: []string{"/bin/true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	x, err := open(r.GetUrl(), want{noStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	if code, text := x.status(t); code != 0 {
		t.Errorf("code %d (%s)", code, text)
	}
	for _, u := range []string{r.GetUrl(), r.GetUrl() + "x", strings.Replace(r.GetUrl(), "/exec/", "/attach/", 1)} {
		if _, err := open(u, want{noStderr: true}); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("a URL used again: %v", err)
		}
	}
}

// pair opens one forwarded connection.
func pair(t *testing.T, sc httpstream.Connection, port, id int) (data, fault httpstream.Stream) {
	t.Helper()
	h := http.Header{}
	h.Set("port", strconv.Itoa(port))
	h.Set("requestID", strconv.Itoa(id))
	h.Set("streamType", "error")
	fault, err := sc.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	_ = fault.Close()
	h.Set("streamType", "data")
	if data, err = sc.CreateStream(h); err != nil {
		t.Fatal(err)
	}
	return data, fault
}

// forwarder opens a session of port forwarding, tunnelled through a websocket or
// not.
func (s *streamSuite) forwarder(t *testing.T, pod string, tunnel bool) httpstream.Connection {
	t.Helper()
	r, err := s.n.CRI.PortForward(t.Context(), &v1.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	if tunnel {
		ws, err := dialWebsocket(r.GetUrl(), "SPDY/3.1+portforward.k8s.io", nil)
		if err != nil {
			t.Fatal(err)
		}
		sc, err := spdy.NewClientConnection(ws)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ws.Close(); _ = sc.Close() })
		return sc
	}
	conn, sc, err := upgrade(r.GetUrl(), "portforward.k8s.io", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); _ = sc.Close() })
	return sc
}

func (s *streamSuite) portForward(t *testing.T) {
	// Each connection's data is answered at its end: by half-closes both ways.
	sum := func(c *net.TCPConn) {
		h := sha256.New()
		_, _ = io.Copy(h, c)
		_, _ = fmt.Fprintf(c, "%x", h.Sum(nil))
	}
	s.serve(t, "127.0.0.1:7000", sum)
	s.serve(t, "[::1]:7001", sum)
	for _, tunnel := range []bool{false, true} {
		sc := s.forwarder(t, s.pod.ID, tunnel)
		const connections = 40
		got, wanted := make([]string, connections), make([]string, connections)
		done := make(chan int)
		for i := range connections {
			sent := bytes.Repeat([]byte{byte(i)}, 200_000)
			sum := sha256.Sum256(sent)
			wanted[i] = hex.EncodeToString(sum[:])
			data, _ := pair(t, sc, 7000+i%2, i)
			go func() {
				_, _ = data.Write(sent)
				_ = data.Close()
				b, _ := io.ReadAll(data)
				got[i] = string(b)
				done <- i
			}()
		}
		for range connections {
			<-done
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("tunnel %v (-want +got):\n%s", tunnel, diff)
		}
		data, fault := pair(t, sc, 7002, 1000)
		said, _ := io.ReadAll(fault)
		if !strings.Contains(string(said), "7002") || !strings.Contains(string(said), "refused") {
			t.Errorf("a port where nobody listens: %q", said)
		}
		if b, _ := io.ReadAll(data); len(b) != 0 {
			t.Errorf("data of no connection: %q", b)
		}
	}
	s.portChannels(t)
}

// portChannels forwards by the websocket protocol with a channel pair per port.
func (s *streamSuite) portChannels(t *testing.T) {
	s.serve(t, "127.0.0.1:7003", func(c *net.TCPConn) { _, _ = io.WriteString(c, "hello\n") })
	r, err := s.n.CRI.PortForward(t.Context(), &v1.PortForwardRequest{PodSandboxId: s.pod.ID, Port: []int32{7003, 7002}})
	if err != nil {
		t.Fatal(err)
	}
	ws, err := dialWebsocket(r.GetUrl(), "v4.channel.k8s.io", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.Close() }()
	var got [4]string
	for {
		var msg []byte
		if err := websocket.Message.Receive(ws, &msg); err != nil {
			break
		}
		got[msg[0]] += string(msg[1:])
	}
	if got[0] != "\x5b\x1bhello\n" || got[1] != "\x5b\x1b" || got[2] != "\x5a\x1b" || !strings.Contains(got[3], "refused") {
		t.Errorf("channels: %q", got)
	}
}

// serve listens in the pod's network namespace.
func (s *streamSuite) serve(t *testing.T, address string, handle func(*net.TCPConn)) {
	t.Helper()
	ns, err := os.Open(filepath.Join(s.n.State, "ns", s.pod.ID, "net"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	listening := make(chan net.Listener, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is elsewhere
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		var l net.Listener
		if err == nil {
			l, err = net.Listen("tcp", address)
		}
		if err != nil {
			t.Error(err)
		}
		listening <- l
	}()
	l := <-listening
	if l == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				handle(c.(*net.TCPConn))
			}()
		}
	}()
}

func (s *streamSuite) hostNetwork(t *testing.T) {
	cfg := s.n.PodConfig("host")
	cfg.Linux.SecurityContext.NamespaceOptions.Network, cfg.Hostname = v1.NamespaceMode_NODE, ""
	pod := s.n.RunPod(t, cfg)
	defer pod.Remove(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // of the test's, which is the host here
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(c, "the host's")
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p, _ := strconv.Atoi(port)
	data, _ := pair(t, s.forwarder(t, pod.ID, false), p, 1)
	_ = data.Close()
	if b, err := io.ReadAll(data); string(b) != "the host's" {
		t.Errorf("%q, %v", b, err)
	}
}

func (s *streamSuite) execSync(t *testing.T) {
	script := "(setsid sleep 71000) & (trap '' HUP; sleep 71000) & sleep 71000"
	_, err := s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: s.c.ID, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 1})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("timeout: %v", err)
	}
	if left := nodetest.Processes("sleep", "71000"); len(left) != 0 {
		t.Errorf("left of the exec: %v", left)
	}
}
