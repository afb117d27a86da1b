package mesosgo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"
	"github.com/mesos/mesos-go/api/v1/lib/encoding"
	"github.com/mesos/mesos-go/api/v1/lib/encoding/codecs"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli/httpagent"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// forms are the encodings that mesos-go speaks.
func forms() map[string]encoding.Codec {
	return map[string]encoding.Codec{"JSON": codecs.ByMediaType[codecs.MediaTypeJSON], "protobuf": codecs.ByMediaType[codecs.MediaTypeProtobuf]}
}

// heard has the status codes of the answers to calls, of all clients that share it.
type heard struct {
	mu    sync.Mutex
	codes map[agent.Call_Type]map[int]bool
}

func (h *heard) add(kind agent.Call_Type, code int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.codes == nil {
		h.codes = map[agent.Call_Type]map[int]bool{}
	}
	if h.codes[kind] == nil {
		h.codes[kind] = map[int]bool{}
	}
	h.codes[kind][code] = true
}

// client is mesos-go in one form, over the agent's socket.
type client struct {
	t     *testing.T
	n     *nodetest.Node
	codec encoding.Codec
	http  http.Client
	url   string
	heard *heard
}

func newClient(t *testing.T, n *nodetest.Node, codec encoding.Codec, h *heard) *client {
	t.Helper()
	path := filepath.Join(n.State, "mesos.sock")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}
	return &client{t: t, n: n, codec: codec, http: http.Client{Transport: tr}, url: "http://mesos/api/v1", heard: h}
}

// refusal is an answer that is no success.
type refusal struct {
	code int
	text string
}

// Error implements error.
func (r *refusal) Error() string { return fmt.Sprintf("%d %q", r.code, r.text) }

func refused(resp *http.Response) error {
	if resp.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return &refusal{resp.StatusCode, string(text)}
}

// send sends r by mesos-go and returns the answer. The response is nil if there is none.
func (c *client) send(ctx context.Context, kind agent.Call_Type, r calls.Request) (int, mesos.Response, error) {
	code := 0
	do := func(req *http.Request) (*http.Response, error) {
		resp, err := c.http.Do(req)
		if err == nil {
			code = resp.StatusCode
			c.heard.add(kind, code)
		}
		return resp, err
	}
	cli := httpcli.New(httpcli.Endpoint(c.url), httpcli.Codec(c.codec), httpcli.Do(do), httpcli.ErrorMapper(refused))
	resp, err := httpagent.NewSender(cli.Send).Send(ctx, r)
	if err != nil && resp != nil {
		_ = resp.Close()
		resp = nil
	}
	return code, resp, err
}

// answer sends a call that is answered by one message; nil for none.
func (c *client) answer(call *agent.Call) (int, *agent.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	defer cancel()
	code, resp, err := c.send(ctx, call.GetType(), calls.NonStreaming(call))
	if err != nil || resp == nil {
		return code, nil, err
	}
	defer func() { _ = resp.Close() }()
	var r agent.Response
	if err := resp.Decode(&r); err != nil {
		return code, nil, err
	}
	return code, &r, nil
}

// ok wants a success.
func (c *client) ok(call *agent.Call) *agent.Response {
	c.t.Helper()
	code, r, err := c.answer(call)
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("%s: %d, %v\n%s", call.GetType(), code, err, c.n.LogTail(1000))
	}
	return r
}

// again wants the answer that the container runs already.
func (c *client) again(call *agent.Call) {
	c.t.Helper()
	if code, _, err := c.answer(call); err != nil || code != http.StatusAccepted {
		c.t.Errorf("%s: %d, %v; want 202", call.GetType(), code, err)
	}
}

// no wants a refusal that begins so.
func (c *client) no(call *agent.Call, code int, text string) {
	c.t.Helper()
	_, _, err := c.answer(call)
	c.is(call.GetType().String(), err, code, text)
}

func (c *client) is(what string, err error, code int, text string) {
	c.t.Helper()
	var r *refusal
	if !errors.As(err, &r) || r.code != code || !strings.HasPrefix(r.text, text) {
		c.t.Errorf("%s: %v, want %d %q", what, err, code, text)
	}
}

// pending is a call that is being waited for.
type pending struct {
	done chan struct{}
	resp *agent.Response
	err  error
}

func (c *client) begin(call *agent.Call) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_, p.resp, p.err = c.answer(call)
	}()
	return p
}

// waits wants that there was no answer so far.
func (p *pending) waits(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
		t.Errorf("it did not wait: %v, %v", p.resp, p.err)
	default:
	}
}

// output is a stream of output on its way.
type output struct {
	t      *testing.T
	resp   mesos.Response
	text   map[agent.ProcessIO_Data_Type]string
	beats  []*agent.ProcessIO_Control_Heartbeat
	cancel context.CancelFunc
}

// open wants a stream.
func (c *client) open(call *agent.Call) *output {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	c.t.Cleanup(cancel)
	code, resp, err := c.send(ctx, call.GetType(), calls.NonStreaming(call))
	if err != nil || resp == nil || code != http.StatusOK {
		c.t.Fatalf("%s: %d, %v\n%s", call.GetType(), code, err, c.n.LogTail(1000))
	}
	c.t.Cleanup(func() { _ = resp.Close() })
	return &output{t: c.t, resp: resp, text: map[agent.ProcessIO_Data_Type]string{}, cancel: cancel}
}

// next reads one record; false at the end.
func (o *output) next() bool {
	o.t.Helper()
	var m agent.ProcessIO
	err := o.resp.Decode(&m)
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		o.t.Fatalf("the stream broke: %v, after %q", err, o.text)
	}
	switch m.GetType() {
	case agent.ProcessIO_CONTROL:
		o.beats = append(o.beats, m.GetControl().GetHeartbeat())
	case agent.ProcessIO_DATA:
		o.text[m.GetData().GetType()] += string(m.GetData().GetData())
	case agent.ProcessIO_UNKNOWN:
		o.t.Errorf("a record of no type")
	}
	return true
}

func (o *output) stdout() string { return o.text[agent.ProcessIO_Data_STDOUT] }

func (o *output) stderr() string { return o.text[agent.ProcessIO_Data_STDERR] }

// has reads until this was written.
func (o *output) has(text string) {
	o.t.Helper()
	for !strings.Contains(o.stdout(), text) {
		if !o.next() {
			o.t.Fatalf("it ended before %q: %q", text, o.text)
		}
	}
}

// end reads to the end.
func (o *output) end() {
	o.t.Helper()
	for o.next() {
	}
}

// input sends a stream of input: the call with the container's id, then the records.
func (c *client) input(id mesos.ContainerID, records ...*agent.Call) error {
	first := calls.AttachContainerInput(id)
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	defer cancel()
	code, _, err := c.send(ctx, first.GetType(), calls.Empty().Push(append([]*agent.Call{first}, records...)...))
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("answered %d", code)
	}
	return err
}

// eof sends the record that ends a container's input. mesos-go leaves empty data
// out of its JSON, and is refused then, as by Mesos: there the record is our own.
func (c *client) eof(id mesos.ContainerID) error {
	if c.codec.Type != codecs.MediaTypeJSON {
		return c.input(id, stdin(""))
	}
	c.is("an end that is left out", c.input(id, stdin("")), http.StatusBadRequest, "Failed to validate agent::Call: Expecting 'process_io.data.data' to be present")
	first, err := calls.AttachContainerInput(id).MarshalJSON()
	if err != nil {
		return err
	}
	const end = `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"PROCESS_IO","process_io":{"type":"DATA","data":{"type":"STDIN","data":""}}}}`
	body := fmt.Sprintf("%d\n%s%d\n%s", len(first), first, len(end), end)
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/recordio")
	r.Header.Set("Message-Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return refused(resp)
}

func stdin(text string) *agent.Call { return calls.AttachContainerInputData([]byte(text)) }

// size is a call that sets the size of a terminal.
func size(rows, columns uint32) *agent.Call {
	return calls.AttachContainerInputTTY(&mesos.TTYInfo{WindowSize: &mesos.TTYInfo_WindowSize{Rows: rows, Columns: columns}})
}

func id(value string) mesos.ContainerID { return mesos.ContainerID{Value: value} }

func below(parent mesos.ContainerID, value string) mesos.ContainerID {
	return mesos.ContainerID{Value: value, Parent: &parent}
}

func shell(text string) *mesos.CommandInfo { return &mesos.CommandInfo{Value: &text} }

func image(ref string) *mesos.ContainerInfo {
	kind := mesos.Image_DOCKER
	return &mesos.ContainerInfo{Type: mesos.ContainerInfo_MESOS.Enum(), Mesos: &mesos.ContainerInfo_MesosInfo{Image: &mesos.Image{Type: &kind, Docker: &mesos.Image_Docker{Name: ref}}}}
}

func terminal(ref string) *mesos.ContainerInfo {
	c := image(ref)
	c.TTYInfo = &mesos.TTYInfo{}
	return c
}

func scalar(name string, value float64) mesos.Resource {
	return mesos.Resource{Name: name, Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: value}}
}

// status is how a container ended, in wait(2)'s numbers; -1 when that is not said.
func status(r *agent.Response) int32 {
	s := r.GetWaitContainer().GetExitStatus()
	if r.GetType() == agent.Response_WAIT_NESTED_CONTAINER {
		s = r.GetWaitNestedContainer().GetExitStatus()
		if r.GetWaitNestedContainer() == nil || r.WaitNestedContainer.ExitStatus == nil {
			return -1
		}
		return s
	}
	if r.GetWaitContainer() == nil || r.WaitContainer.ExitStatus == nil {
		return -1
	}
	return s
}
