package mesos

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/session"
)

const (
	idS       = `{"value":"s","parent":{"value":"a"}}`
	sessionS  = `{"type":"LAUNCH_NESTED_CONTAINER_SESSION","launch_nested_container_session":{"container_id":` + idS + `,"command":{"value":"dbg","shell":false}}}`
	waitS     = `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"container_id":` + idS + `}}`
	attachS   = `{"type":"ATTACH_CONTAINER_OUTPUT","attach_container_output":{"container_id":` + idS + `}}`
	attachA   = `{"type":"ATTACH_CONTAINER_OUTPUT","attach_container_output":{"container_id":{"value":"a"}}}`
	firstOfS  = `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":` + idS + `}}`
	firstOfA  = `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`
	launchTTY = `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a"},"command":{"value":"serve"},"container":{"type":"MESOS","tty_info":{"window_size":{"rows":5,"columns":6}}}}}`
)

// stdin is a record of input.
func stdin(data string) string {
	return `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"DATA","data":{"type":"STDIN","data":"` +
		base64.StdEncoding.EncodeToString([]byte(data)) + `"}}}}`
}

// output is a stream of output on its way.
type output struct {
	t      *testing.T
	resp   *http.Response
	r      *api.RecordReader
	text   map[mesosagent.ProcessIO_Data_Type]string
	beats  int
	every  int64 // ns, as the last of them says
	cancel context.CancelFunc
}

func (n *testNode) stream(body string) *output {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	n.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mesos/api/v1", strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/recordio")
	resp, err := n.client.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		n.t.Fatalf("%s: %d %q", body, resp.StatusCode, text)
	}
	return &output{t: n.t, resp: resp, r: api.NewRecordReader(resp.Body, 1<<20), text: map[mesosagent.ProcessIO_Data_Type]string{}, cancel: cancel}
}

// until reads records until done is satisfied, or the stream ends, when it must
// be.
func (o *output) until(what string, done func() bool) {
	o.t.Helper()
	for !done() {
		raw, err := o.r.Next()
		if err != nil {
			o.t.Fatalf("before %s: %v; %v", what, err, o.text)
		}
		var m mesosagent.ProcessIO
		if err := api.UnmarshalJSON(raw, &m); err != nil {
			o.t.Fatalf("%s: %v", raw, err)
		}
		if m.GetType() == mesosagent.ProcessIO_CONTROL {
			o.beats++
			o.every = m.GetControl().GetHeartbeat().GetInterval().GetNanoseconds()
		}
		o.text[m.GetData().GetType()] += string(m.GetData().GetData())
	}
}

func (o *output) has(text string) {
	o.t.Helper()
	o.until(text, func() bool { return strings.Contains(o.text[mesosagent.ProcessIO_Data_STDOUT], text) })
}

// end reads to the end of the stream.
func (o *output) end() {
	o.t.Helper()
	for {
		raw, err := o.r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			o.t.Fatalf("to the end: %v", err)
		}
		var m mesosagent.ProcessIO
		if err := api.UnmarshalJSON(raw, &m); err != nil {
			o.t.Fatalf("%s: %v", raw, err)
		}
		o.text[m.GetData().GetType()] += string(m.GetData().GetData())
	}
}

// input sends records and returns the answer.
func (n *testNode) input(body io.Reader) (int, string) {
	return post(n.t, n.client, "http://mesos", body)
}

// post sends records to an agent and returns the answer.
func post(t *testing.T, client *http.Client, agent string, body io.Reader) (int, string) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, agent+"/api/v1", body)
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Content-Type", "application/recordio")
	r.Header.Set("Message-Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

func framed(list ...string) io.Reader {
	var b strings.Builder
	for _, r := range list {
		_ = api.WriteRecord(&b, []byte(r))
	}
	return strings.NewReader(b.String())
}

// echo greets on both streams, then copies its input, and ends with 3.
func echo(p *enginetest.Process) int {
	_, _ = io.WriteString(p.Stdout(), "hello ")
	_, _ = io.WriteString(p.Stderr(), "oh ")
	_, _ = io.Copy(p.Stdout(), p.Stdin)
	return 3
}

func TestASession(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	n.is(sessionS, 400, "Root container a not found")
	n.is(launchA, 200, "")
	o := n.stream(sessionS)
	if o.resp.Header.Get("Content-Type") != "application/recordio" || o.resp.Header.Get("Message-Content-Type") != "application/json" {
		t.Errorf("headers %v", o.resp.Header)
	}
	o.has("hello")
	n.is(sessionS, 202, "")
	onlooker := n.stream(attachS)
	for range 2 { // a stream of input that ends ends nothing
		if code, text := n.input(framed(firstOfS, stdin("more "))); code != 200 || text != "" {
			t.Errorf("input: %d %q", code, text)
		}
	}
	o.has("more more")
	onlooker.has("more more")
	if code, text := n.input(framed(firstOfS, `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"CONTROL","control":{"type":"TTY_INFO","tty_info":{"window_size":{"rows":1,"columns":1}}}}}}`)); code != 400 || !strings.HasPrefix(text, "Unable to set the window size: ") {
		t.Errorf("a size for what is no terminal: %d %q", code, text)
	}
	if code, text := n.input(framed(firstOfS, stdin("end"), stdin(""))); code != 200 || text != "" {
		t.Errorf("the end of input: %d %q", code, text)
	}
	o.end()
	onlooker.end()
	if out, err := o.text[mesosagent.ProcessIO_Data_STDOUT], o.text[mesosagent.ProcessIO_Data_STDERR]; out != "hello more more end" || err != "oh " || o.beats == 0 {
		t.Errorf("%q and %q, %d signs of life", out, err, o.beats)
	}
	n.is(waitS, 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":768}}`)
	n.shutdown()
	n.Restart()
	n.serve() // another agent knows it too
	n.is(waitS, 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":768}}`)
	n.is(`{"type":"REMOVE_NESTED_CONTAINER","remove_nested_container":{"container_id":`+idS+`}}`, 200, "")
	n.is(waitS, 404, "Container a.s cannot be found")
	n.shutdown()
	if left := n.container("a").Execs; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestSignsOfLife: every stream of output has them for as long as it lasts, and they
// say how often.
func TestSignsOfLife(t *testing.T) {
	n := newTestNode(t)
	n.shutdown()
	n.heartbeat = time.Millisecond
	n.serve()
	n.Supervisor.Program("dbg", echo)
	n.is(launchTTY, 200, "")
	session := n.stream(sessionS)
	session.has("hello")
	for name, o := range map[string]*output{"session": session, "onlooker": n.stream(attachS), "terminal": n.stream(attachA)} {
		o.until("signs of life of the "+name, func() bool { return o.beats >= 3 })
		if o.every != 1000000 {
			t.Errorf("%s: every %d ns", name, o.every)
		}
	}
}

// TestADroppedSessionIsKilled: it lives no longer than its connection.
func TestADroppedSessionIsKilled(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	n.is(launchA, 200, "")
	for i := range 20 {
		named := func(body string) string { return strings.ReplaceAll(body, `"s"`, fmt.Sprintf(`"s%d"`, i)) }
		o := n.stream(named(sessionS))
		o.has("hello")
		o.cancel()
		n.is(named(waitS), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
	}
	n.shutdown()
	if left := n.container("a").Execs; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOneInputAtATime(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	n.is(launchA, 200, "")
	o := n.stream(sessionS)
	r, w := io.Pipe()
	var first sync.WaitGroup
	first.Go(func() {
		if code, text := n.input(r); code != 200 || text != "" {
			t.Errorf("the first: %d %q", code, text)
		}
	})
	for _, record := range []string{firstOfS, stdin("mine")} {
		if err := api.WriteRecord(w, []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	o.has("mine")
	if code, text := n.input(framed(firstOfS, stdin("not mine"))); code != 409 || text != "Multiple input connections are not allowed" {
		t.Errorf("the second: %d %q", code, text)
	}
	// The end of the process ends the input, though the client does not.
	n.is(`{"type":"KILL_NESTED_CONTAINER","kill_nested_container":{"container_id":`+idS+`}}`, 200, "")
	o.end()
	first.Wait()
	_ = w.Close()
}

// TestARefusedInputIsAnsweredAtOnce: the client learns of any refusal while it may still send.
func TestARefusedInputIsAnsweredAtOnce(t *testing.T) {
	n := newTestNode(t)
	refused := func(code int, want string, send func(body io.Reader) (int, string)) {
		t.Helper()
		r, w := io.Pipe() // ends after the answer
		defer func() { _ = w.Close() }()
		go func() { _ = api.WriteRecord(w, []byte(firstOfA)) }()
		if got, text := send(r); got != code || text != want {
			t.Errorf("%d %q, want %d %q", got, text, code, want)
		}
	}
	refused(404, "Container a cannot be found", n.input)
	n.is(launchA, 200, "")
	refused(500, "I/O switchboard server was disabled for this container", n.input)
	n.recovered = make(chan struct{})
	v := visitor{t: t, address: n.listen(func(c *Config) { c.Credentials = written(t, "ops s3cret") })}
	refused(503, "Agent has not finished recovery", n.input)
	refused(401, "401 Unauthorized.", func(body io.Reader) (int, string) { return post(t, http.DefaultClient, "http://"+v.address, body) })
}

func TestAttachNeedsATerminal(t *testing.T) {
	n := newTestNode(t)
	n.is(attachA, 404, "Container a cannot be found")
	n.is(launchA, 200, "")
	n.is(attachA, 500, "I/O switchboard server was disabled for this container")
	n.is(attachS, 500, "Unknown container a.s")
	for _, body := range []string{firstOfA, firstOfS} {
		if code, _ := n.input(framed(body)); code != 500 {
			t.Errorf("input: %d", code)
		}
	}
	if code, text := n.input(framed(stdin("x"))); code != 400 || text != "Expecting 'attach_container_input.type' to be CONTAINER_ID" {
		t.Errorf("input out of nowhere: %d %q", code, text)
	}
}

func TestATerminal(t *testing.T) {
	n := newTestNode(t)
	n.is(launchTTY, 200, "")
	p := n.Supervisor.Process(core.Ref{Container: n.container("a").ID})
	if p.Size != (core.Size{Cols: 6, Rows: 5}) {
		t.Errorf("size %v", p.Size)
	}
	one, two := n.stream(attachA), n.stream(attachA)
	if err := p.Write(1, []byte("prompt")); err != nil {
		t.Fatal(err)
	}
	one.has("prompt")
	two.has("prompt")
	size := `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"CONTROL","control":{"type":"TTY_INFO","tty_info":{"window_size":{"rows":7,"columns":8}}}}}}`
	if code, text := n.input(framed(firstOfA, size)); code != 200 {
		t.Errorf("a size: %d %q", code, text)
	}
	if p.Size != (core.Size{Cols: 8, Rows: 7}) {
		t.Errorf("size %v", p.Size)
	}
	two.cancel()
	n.Supervisor.Exit(core.Ref{Container: n.container("a").ID}, 0)
	one.end()
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
	if code, _ := n.input(framed(firstOfA)); code != 500 {
		t.Errorf("input for what has ended: %d", code)
	}
}

// TestGetContainers: the requested kinds, each by its whole name.
func TestGetContainers(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	names := func(flags string) string {
		var list []string
		for _, c := range n.answer(`{"type":"GET_CONTAINERS","get_containers":{` + flags + `}}`).GetGetContainers().GetContainers() {
			if c.GetContainerStatus().GetExecutorPid() == 0 || c.GetContainerStatus().GetContainerId().String() != c.GetContainerId().String() {
				t.Errorf("%v", c)
			}
			name := c.GetContainerId().GetValue()
			if p := c.GetContainerId().GetParent(); p != nil {
				name = p.GetValue() + "." + name
			}
			if c.GetResourceStatistics() != nil {
				name += "+"
			}
			list = append(list, name)
		}
		return strings.Join(list, " ")
	}
	n.is(launchA, 200, "")
	n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"b","parent":{"value":"a"}},"command":{"value":"serve"}}}`, 200, "")
	o := n.stream(sessionS)
	o.has("hello")
	for flags, want := range map[string]string{
		"": "", `"show_standalone":true`: "a+", `"show_nested":true`: "a.s a.b+", `"show_nested":true,"show_standalone":true`: "a+ a.s a.b+",
	} {
		if got := names(flags); got != want {
			t.Errorf("%s: %q, want %q", flags, got, want)
		}
	}
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	if got := names(`"show_nested":true,"show_standalone":true`); got != "" {
		t.Errorf("after the end: %q", got)
	}
}

// TestFilesOverTheWire: a sandbox by its path on the host.
func TestFilesOverTheWire(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	dir := filepath.Join(n.work, "containers", "a")
	if err := n.Supervisor.Process(core.Ref{Container: n.container("a").ID}).Write(1, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range n.answer(`{"type":"LIST_FILES","list_files":{"path":"` + dir + `"}}`).GetListFiles().GetFileInfos() {
		names = append(names, filepath.Base(f.GetPath()))
	}
	if got := strings.Join(names, " "); got != "cache containers stdout" {
		t.Errorf("listed %s", got)
	}
	read := func(path string) string {
		return `{"type":"READ_FILE","read_file":{"path":"` + path + `","offset":1,"length":3}}`
	}
	n.is(read(dir+"/stdout"), 200, `{"type":"READ_FILE","read_file":{"size":5,"data":"ZWxs"}}`)
	n.is(read(dir), 400, "Cannot read a directory.\n")
	n.is(read(dir+"/none"), 404, "404 Not Found.")
	n.is(read("/etc/passwd"), 404, "404 Not Found.")
	n.is(`{"type":"LIST_FILES","list_files":{"path":"`+dir+`/none"}}`, 404, "404 Not Found.")
}

// TestAnEndedSessionTouchesNoLaterOne: clients hear of a session's end as soon as it is
// on record, and may give its name to another before it is cleaned up.
func TestAnEndedSessionTouchesNoLaterOne(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	n.is(launchA, 200, "")
	o := n.stream(sessionS)
	o.has("hello")
	s, ref := n.server, n.server.sessions.Live("a.s").Ref
	unlock, err := s.ids.Lock(t.Context(), "a.s")
	if err != nil {
		t.Fatal(err)
	}
	if code, text := n.input(framed(firstOfS, stdin(""))); code != 200 {
		t.Errorf("the end of input: %d %q", code, text)
	}
	if _, err := s.engine.Wait(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.RemoveProcess(t.Context(), ref, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	_, streams, err := s.engine.Exec(t.Context(), ref.Container, core.ProcessConfig{
		ID: ref.Process, Spec: &specs.Process{Args: []string{"dbg"}, Cwd: "/"}, IO: core.IO{Stdin: core.StdinOpen},
		Attach: &core.StreamOptions{Stdin: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	later := &session.Session{Session: &attach.Session{Engine: s.engine, Ref: ref, Streams: streams}}
	s.sessions.Begin("a.s", later)
	unlock()
	o.end()
	c := n.container("a")
	if p := c.Process(ref.Process); p == nil || p.Autopsy != nil || s.sessions.Live("a.s") != later {
		t.Errorf("the later session: %+v, live: %v", p, s.sessions.Live("a.s") == later)
	}
	if err := errors.Join(streams.Close(), s.engine.RemoveProcess(t.Context(), ref, engine.RemoveOptions{Force: true})); err != nil {
		t.Error(err)
	}
}
