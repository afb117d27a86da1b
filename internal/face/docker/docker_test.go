package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/conformancetest"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/solo"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// noNetworks has no networks that users define.
type noNetworks struct{ solo.Networks }

func (noNetworks) Defined() []core.NetworkDefinition { return nil }

// rig is a face over an engine with fakes, and its socket.
type rig struct {
	*enginetest.Node
	face   *Face
	image  core.Image // busybox
	socket string
	client http.Client
	// authority has signed the certificate of the listener at tcp.
	authority *tlsconftest.Authority
	tcp       string
	config    Config
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	dir, err := os.MkdirTemp("", "ls") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{Node: n, socket: filepath.Join(dir, "d.sock")}
	r.image = n.AddImage("busybox", ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin", "FROM=image"}, Labels: map[string]string{"of": "image"}}, map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/group": "root:x:0:\n",
	})
	n.Supervisor.Program("echo", func(p *enginetest.Process) int {
		fmt.Fprintln(p.Stdout(), strings.Join(p.Args[1:], " "))
		return 0
	})
	n.Supervisor.Program("cat", func(p *enginetest.Process) int {
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 0
	})
	n.Supervisor.Program("both", func(p *enginetest.Process) int {
		fmt.Fprintln(p.Stdout(), "out")
		fmt.Fprintln(p.Stderr(), "err")
		return 7
	})
	n.Supervisor.Program("sh", func(p *enginetest.Process) int {
		<-p.Killed
		return 0
	})
	r.serve(t, change...)
	return r
}

// fullSocket is a listener with the name that the agent gives to that of the full socket.
type fullSocket struct{ net.Listener }

func (fullSocket) SocketName() string { return FullSocket }

func (r *rig) serve(t *testing.T, change ...func(*Options)) {
	t.Helper()
	config := DefaultConfig()
	config.Socket, config.ReadSocket, config.Show = r.socket, r.socket+"-read", []string{"cli", "nomad"}
	config.Manage = []string{"nomad"}
	r.authority = tlsconftest.New(t)
	config.TCP, config.TLSClientCA = "127.0.0.1:0", r.authority.File
	config.TLSCert, config.TLSKey = r.authority.Issue("node")
	r.config = config
	o := Options{
		Deps:   face.Deps{Engine: r.As(core.OwnerDocker), Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"},
		Config: config, Node: solo.NewNode(r.Engine, noNetworks{}), Root: t.TempDir(), Transfers: r.Images, Networks: noNetworks{}, All: r.Engine.All(),
	}
	for _, f := range change {
		f(&o)
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.face = f
	var listeners []net.Listener
	for _, path := range []string{config.Socket, config.ReadSocket} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if path == config.Socket {
			l = fullSocket{l}
		}
		listeners = append(listeners, l)
	}
	tcp, err := net.Listen("tcp", config.TCP)
	if err != nil {
		t.Fatal(err)
	}
	r.tcp = tcp.Addr().String()
	listeners = append(listeners, tcp)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Serve(ctx, listeners...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.socket)
	}}
}

// ask sends a request with a body in JSON, "" for none, and returns the status and the answer.
func (r *rig) ask(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(out))
}

// must is ask with an expected status. It reads the answer into to, unless that is nil.
func (r *rig) must(t *testing.T, status int, method, path, body string, to any) string {
	t.Helper()
	code, text := r.ask(t, method, path, body)
	if code != status {
		t.Fatalf("%s %s %s: %d %s, want %d", method, path, body, code, text, status)
	}
	if to != nil {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	return text
}

// made creates a container and returns its id.
func (r *rig) made(t *testing.T, name, body string) string {
	t.Helper()
	var c struct {
		ID string `json:"Id"`
	}
	r.must(t, 201, "POST", "/containers/create?name="+name, body, &c)
	return c.ID
}

// hijack sends a request and returns the connection behind the header of the answer, and the header.
func (r *rig) hijack(t *testing.T, path, body string, upgrade bool) (*net.UnixConn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	head := "POST " + path + " HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
	if upgrade {
		head += "Connection: Upgrade\r\nUpgrade: tcp\r\n"
	}
	_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		t.Fatal("no unix socket")
	}
	return unix, in, resp
}

// frames reads frames until the end: the output of each stream.
func frames(t *testing.T, r io.Reader) map[byte]string {
	t.Helper()
	out := map[byte]string{}
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(r, data); err != nil {
			t.Fatal(err)
		}
		out[head[0]] += string(data)
	}
}

// document is the part of a container's document that the tests read.
type document struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status   string
		Running  bool
		ExitCode int
	}
	Config struct {
		Hostname string
		Env, Cmd []string
		Labels   map[string]string
	}
	HostConfig struct {
		NetworkMode   string
		RestartPolicy struct{ Name string }
		ShmSize       int64
		PidsLimit     *int64
	}
}

func TestLifeOfAContainer(t *testing.T) {
	r := newRig(t)
	id := r.made(t, "web", `{"Image":"busybox","Env":["A=1","FROM"],"Labels":{"x":"y"}}`)
	var d document
	r.must(t, 200, "GET", "/containers/web/json", "", &d)
	if d.ID != id || d.Name != "/web" || d.State.Status != "created" || d.State.Running || d.Config.Hostname != id[:12] || d.Config.Labels["of"] != "image" || d.Config.Labels["x"] != "y" {
		t.Errorf("created: %+v", d)
	}
	if fmt.Sprint(d.Config.Env) != "[A=1 FROM PATH=/bin]" || d.HostConfig.NetworkMode != "bridge" || d.HostConfig.RestartPolicy.Name != "no" || d.HostConfig.ShmSize != 64<<20 || d.HostConfig.PidsLimit != nil {
		t.Errorf("defaults: %+v", d)
	}
	r.must(t, 204, "POST", "/containers/web/start", "", nil)
	r.must(t, 304, "POST", "/containers/"+id[:12]+"/start", "", nil)
	r.must(t, 200, "GET", "/containers//web/json", "", &d)
	if d.State.Status != "running" || !d.State.Running {
		t.Errorf("started: %+v", d.State)
	}
	r.must(t, 409, "DELETE", "/containers/web", "", nil)
	r.must(t, 204, "POST", "/containers/web/rename?name=other", "", nil)
	r.must(t, 204, "POST", "/containers/other/stop?t=0", "", nil)
	r.must(t, 304, "POST", "/containers/other/stop", "", nil)
	r.must(t, 409, "POST", "/containers/other/kill", "", nil)
	r.must(t, 204, "POST", "/containers/other/start", "", nil)
	r.must(t, 204, "DELETE", "/containers/other?force=1&v=1", "", nil)
	r.must(t, 404, "GET", "/containers/other/json", "", nil)
	if list := r.must(t, 200, "GET", "/containers/json?all=1", "", nil); list != "[]" {
		t.Errorf("left: %s", list)
	}
}

// TestInspectCanBeSentBack sends the configuration that inspect shows to create, as Watchtower does.
func TestInspectCanBeSentBack(t *testing.T) {
	r := newRig(t)
	r.made(t, "a", `{"Image":"busybox","Cmd":["echo","x"],"HostConfig":{"Memory":67108864,"RestartPolicy":{"Name":"on-failure","MaximumRetryCount":3},"Tmpfs":{"/t":"size=1m"},"PidsLimit":0}}`)
	var first, second map[string]any
	r.must(t, 200, "GET", "/containers/a/json", "", &first)
	body, ok := first["Config"].(map[string]any)
	if !ok {
		t.Fatal(first)
	}
	body["HostConfig"] = first["HostConfig"]
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r.made(t, "b", string(text))
	r.must(t, 200, "GET", "/containers/b/json", "", &second)
	if a, b := fmt.Sprint(first["HostConfig"]), fmt.Sprint(second["HostConfig"]); a != b {
		t.Errorf("the host's part was\n%s\nis\n%s", a, b)
	}
}

// TestAttachBeforeTheStart attaches as the command line does: before the start, with input and the end of its half.
func TestAttachBeforeTheStart(t *testing.T) {
	for _, upgrade := range []bool{true, false} {
		r := newRig(t)
		r.made(t, "c", `{"Image":"busybox","Cmd":["cat"],"OpenStdin":true,"StdinOnce":true}`)
		conn, in, resp := r.hijack(t, "/containers/c/attach?stream=1&stdin=1&stdout=1&stderr=1", "", upgrade)
		want := map[bool]int{true: 101, false: 200}[upgrade]
		if resp.StatusCode != want {
			t.Fatalf("%v: %s", upgrade, resp.Status)
		}
		_, _ = io.WriteString(conn, "before ")
		_ = conn.CloseWrite()
		wait := make(chan string, 1)
		go func() {
			_, text := r.ask(t, "POST", "/containers/c/wait?condition=next-exit", "")
			wait <- text
		}()
		r.must(t, 204, "POST", "/containers/c/start", "", nil)
		from := io.Reader(in)
		if !upgrade {
			from = resp.Body
		}
		if out := frames(t, from); out[1] != "before " || out[2] != "" {
			t.Errorf("%v: output %q", upgrade, out)
		}
		if code, text := r.ask(t, "POST", "/containers/c/wait", ""); code != 200 || text != `{"StatusCode":0}` {
			t.Errorf("%v: wait: %d %s", upgrade, code, text)
		}
		_ = wait
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t)
	r.made(t, "l", `{"Image":"busybox","Cmd":["both"]}`)
	r.must(t, 204, "POST", "/containers/l/start", "", nil)
	if text := r.must(t, 200, "POST", "/containers/l/wait", "", nil); text != `{"StatusCode":7}` {
		t.Errorf("wait: %s", text)
	}
	resp, err := r.client.Get("http://docker/containers/l/logs?stdout=1&stderr=1&timestamps=1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out := frames(t, resp.Body)
	if !strings.HasSuffix(out[1], " out\n") || !strings.HasSuffix(out[2], " err\n") || len(out[1]) != len("2006-01-02T15:04:05.000000000Z out\n") {
		t.Errorf("logs: %q", out)
	}
	if resp.Header.Get("Content-Type") != "application/vnd.docker.multiplexed-stream" || resp.TransferEncoding == nil {
		t.Errorf("header: %v %v", resp.Header, resp.TransferEncoding)
	}
	r.must(t, 400, "GET", "/containers/l/logs", "", nil)
}

func TestExecs(t *testing.T) {
	r := newRig(t)
	r.made(t, "x", `{"Image":"busybox"}`)
	r.must(t, 409, "POST", "/containers/x/exec", `{"Cmd":["cat"]}`, nil)
	r.must(t, 204, "POST", "/containers/x/start", "", nil)
	var e struct {
		ID string `json:"Id"`
	}
	r.must(t, 201, "POST", "/containers/x/exec", `{"Cmd":["cat"],"AttachStdin":true,"AttachStdout":true}`, &e)
	var doc struct {
		Running  bool
		ExitCode *int
	}
	r.must(t, 200, "GET", "/exec/"+e.ID+"/json", "", &doc)
	if doc.Running || doc.ExitCode != nil {
		t.Errorf("created: %+v", doc)
	}
	conn, in, _ := r.hijack(t, "/exec/"+e.ID+"/start", `{"Detach":false}`, true)
	_, _ = io.WriteString(conn, "in")
	_ = conn.CloseWrite()
	if out := frames(t, in); out[1] != "in" {
		t.Errorf("output %q", out)
	}
	r.must(t, 200, "GET", "/exec/"+e.ID+"/json", "", &doc)
	if doc.Running || doc.ExitCode == nil || *doc.ExitCode != 0 {
		t.Errorf("ended: %+v", doc)
	}
	// Old clients start an exec twice: the second answer has an error in its output.
	_, in, resp := r.hijack(t, "/exec/"+e.ID+"/start", `{}`, true)
	if out := frames(t, in); resp.StatusCode != http.StatusSwitchingProtocols || !strings.Contains(out[1], "has already run") {
		t.Errorf("twice: %d %q", resp.StatusCode, out)
	}
	r.must(t, 404, "GET", "/exec/none/json", "", nil)
	r.must(t, 400, "POST", "/containers/x/exec", `{"Cmd":[]}`, nil)
}

// TestAClientThatLeavesAnExec closes the connection of an exec: the process continues, and inspect has its code.
func TestAClientThatLeavesAnExec(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	r.Supervisor.Program("slow", func(p *enginetest.Process) int {
		<-release
		fmt.Fprintln(p.Stdout(), "nobody reads this")
		return 5
	})
	r.made(t, "x", `{"Image":"busybox"}`)
	r.must(t, 204, "POST", "/containers/x/start", "", nil)
	var e struct {
		ID string `json:"Id"`
	}
	r.must(t, 201, "POST", "/containers/x/exec", `{"Cmd":["slow"],"AttachStdout":true}`, &e)
	conn, _, _ := r.hijack(t, "/exec/"+e.ID+"/start", `{}`, true)
	_ = conn.Close()
	close(release)
	var doc struct{ ExitCode *int }
	for doc.ExitCode == nil {
		r.must(t, 200, "GET", "/exec/"+e.ID+"/json", "", &doc)
		<-time.After(time.Millisecond)
	}
	if *doc.ExitCode != 5 {
		t.Errorf("code %d", *doc.ExitCode)
	}
}

func TestRefusedCreates(t *testing.T) {
	r := newRig(t)
	r.made(t, "plain", `{"Image":"busybox","HostConfig":{"VolumeDriver":"nfs"}}`) // without a volume the driver does not matter
	r.must(t, 204, "DELETE", "/containers/plain", "", nil)
	for body, want := range map[string]string{
		`{}`: "config cannot be empty in order to create a container", `{"Image":"busybox","HostConfig":{"Isolation":"hyperv"}}`: "Isolation",
		`{"Image":"busybox","HostConfig":{"LogConfig":{"Type":"asdf"}}}`:                                     "logger: no log driver named 'asdf' is registered",
		`{"Image":"busybox","HostConfig":{"LogConfig":{"Type":"gelf"}}}`:                                     "json-file",
		`{"Image":"busybox","HostConfig":{"LogConfig":{"Type":"syslog","Config":{"color":"red"}}}}`:          "unknown log opt 'color' for syslog log driver",
		`{"Image":"busybox","Volumes":{"/a":{}},"HostConfig":{"VolumeDriver":"nfs"}}`:                        "nfs",
		`{"Image":"busybox","HostConfig":{"AutoRemove":true,"RestartPolicy":{"Name":"always"}}}`:             "can't create 'AutoRemove' container with restart policy",
		`{"Image":"busybox","HostConfig":{"Memory":1000}}`:                                                   "Minimum memory limit allowed is 6MB",
		`{"Image":"busybox","HostConfig":{"Binds":["/a:/"]}}`:                                                "destination can't be '/'",
		`{"Image":"busybox","HostConfig":{"Mounts":[{"Type":"bind","Source":"/nowhere","Target":"/a"}]}}`:    "bind source path does not exist: /nowhere",
		`{"Image":"busybox","HostConfig":{"NetworkMode":"container:x","PortBindings":{"80/tcp":[]}}}`:        "conflicting options",
		`{"Image":"busybox","NetworkingConfig":{"EndpointsConfig":{"bridge":{"Aliases":["a"]}}}}`:            "user",
		`{"Image":"busybox","HostConfig":{"SecurityOpt":["nonsense"]}}`:                                      "nonsense",
		`{"Image":"busybox","HostConfig":{"DeviceRequests":[{"Driver":"nvidia","Capabilities":[["gpu"]]}]}}`: "device driver",
	} {
		code, text := r.ask(t, "POST", "/containers/create", body)
		if code < 400 || code >= 600 || !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
			t.Errorf("%s: %d %s, want %q", body, code, text, want)
		}
	}
	if code, text := r.ask(t, "POST", "/containers/create", `{"Image":"none"}`); code != 404 || !strings.Contains(text, "No such image: none:latest") {
		t.Errorf("without an image: %d %s", code, text)
	}
	r.made(t, "twice", `{"Image":"busybox"}`)
	if code, text := r.ask(t, "POST", "/containers/create?name=twice", `{"Image":"busybox"}`); code != 409 || !strings.Contains(text, `The container name \"/twice\" is already in use by container`) {
		t.Errorf("a name in use: %d %s", code, text)
	}
	list, err := r.As(core.OwnerDocker).Containers(t.Context(), core.Filter{})
	if err != nil || len(list) != 1 {
		t.Errorf("left: %d, %v", len(list), err)
	}
}

// TestTheReadSocket sends every route to the socket for reading: only those that list and inspect are answered, and environments are
// hidden.
func TestTheReadSocket(t *testing.T) {
	r := newRig(t)
	r.made(t, "web", `{"Image":"busybox","Env":["SECRET=planted"]}`)
	read := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.socket+"-read")
	}}}
	ask := func(method, path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, bytes.NewReader(nil))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := read.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		out, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return resp.StatusCode, string(out)
	}
	for _, route := range (&door{}).mux(r.face).Routes() {
		method, pattern, _ := strings.Cut(route, " ")
		path := strings.NewReplacer("{id...}", "web", "{id}", "web", "{name...}", "busybox", "{name}", "busybox").Replace(pattern)
		if readableRoute(route) {
			continue
		}
		if code, text := ask(method, path); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", route, code, text)
		}
	}
	for _, path := range []string{"/containers/web/json", "/v1.24/containers/web/json", "/containers//web/json", "/containers/json?all=1", "/containers/w%65b/json"} {
		if code, text := ask("GET", path); code != 200 || strings.Contains(text, "planted") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	r.must(t, 204, "POST", "/containers/web/start", "", nil)
	r.must(t, 201, "POST", "/containers/web/exec", `{"Cmd":["cat","planted"]}`, nil)
	if code, text := ask("GET", fmt.Sprintf("/events?since=1&until=%d", time.Now().Unix()+1)); code != 200 || !strings.Contains(text, `"exec_create"`) || strings.Contains(text, "planted") {
		t.Errorf("events: %d %s", code, text)
	}
	for _, path := range []string{"/containers/web/json/../archive?path=/", "/containers/web/%61rchive?path=/", "/containers/web/export", "/containers/web//json/../export", "/images/get?names=busybox"} {
		if code, text := ask("GET", path); code == 200 {
			t.Errorf("%s: %d %.200s", path, code, text)
		}
	}
}

func TestDetachKeys(t *testing.T) {
	for text, want := range map[string]string{"": "[16 17]", "ctrl-a": "[1]", "a,ctrl-@,ctrl-[": "[97 0 27]"} {
		if got, err := detachKeys(text); err != nil || fmt.Sprintf("%d", got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "ab", "a,"} {
		if got, err := detachKeys(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	for in, want := range map[string]string{"abc": "abc", "a\x10b": "a\x10b", "a\x10\x10\x11b": "a\x10!", "\x10\x11": "!", "x\x10": "x\x10"} {
		var out bytes.Buffer
		err := copyKeys(&out, strings.NewReader(in), []byte{16, 17})
		got := out.String()
		if errors.Is(err, errDetached) {
			got += "!"
		}
		if got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
}

// TestConformance compares the routes with their table in docs/conformance.md.
func TestConformance(t *testing.T) {
	conformancetest.Routes(t, "../../..", "Docker's API", "internal/face/docker", (&door{}).mux(newRig(t).face).Routes())
}
