// Package mesosapi calls the Mesos v1 agent API in protobuf, as far as the bench
// needs it. Start at New.
package mesosapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

const (
	protobuf = "application/x-protobuf"
	records  = "application/recordio"
	// maxRecord bounds a record of the agent.
	maxRecord = 64 << 20
)

// Client calls one agent.
type Client struct{ http http.Client }

// New returns a client of the agent's socket. It keeps as many connections as it
// is used by at once.
func New(socket string) *Client {
	return &Client{http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}}
}

// Close lets go of its connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) post(ctx context.Context, body io.Reader, headers map[string]string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/api/v1", body)
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", resp.Status, text)
	}
	return resp, nil
}

// Call does a call; without a message in the answer that is empty.
func (c *Client) Call(ctx context.Context, call *mesosagent.Call) (*mesosagent.Response, error) {
	raw, err := proto.Marshal(call)
	if err != nil {
		return nil, err
	}
	resp, err := c.post(ctx, bytes.NewReader(raw), map[string]string{"Content-Type": protobuf, "Accept": protobuf})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call.GetType(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	if raw, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	answer := &mesosagent.Response{}
	if len(raw) > 0 {
		err = proto.Unmarshal(raw, answer)
	}
	return answer, err
}

// Output is a stream of a container's output.
type Output struct {
	body io.Closer
	r    *api.RecordReader
}

// Open makes a call with a stream as its answer.
func (c *Client) Open(ctx context.Context, call *mesosagent.Call) (*Output, error) {
	raw, err := proto.Marshal(call)
	if err != nil {
		return nil, err
	}
	resp, err := c.post(ctx, bytes.NewReader(raw), map[string]string{"Content-Type": protobuf, "Accept": records, "Message-Accept": protobuf}) //nolint:bodyclose // Output closes it
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call.GetType(), err)
	}
	return &Output{resp.Body, api.NewRecordReader(resp.Body, maxRecord)}, nil
}

// Next returns the next output; io.EOF is its end.
func (o *Output) Next() ([]byte, error) {
	for {
		raw, err := o.r.Next()
		if err != nil {
			return nil, err
		}
		var m mesosagent.ProcessIO
		if err := proto.Unmarshal(raw, &m); err != nil {
			return nil, err
		}
		if m.GetType() == mesosagent.ProcessIO_DATA {
			return m.GetData().GetData(), nil
		}
	}
}

// Until reads until this has come.
func (o *Output) Until(text string) error {
	var got strings.Builder
	for !strings.Contains(got.String(), text) {
		data, err := o.Next()
		if err != nil {
			return fmt.Errorf("no %q in the output %q: %w", text, got.String(), err)
		}
		got.Write(data)
	}
	return nil
}

// Close ends the connection, wherever it is.
func (o *Output) Close() { _ = o.body.Close() }

// Input is a stream of input to a container.
type Input struct {
	w    *io.PipeWriter
	done chan error
}

// Attach begins to send input to a container.
func (c *Client) Attach(ctx context.Context, id *mesosv1.ContainerID) (*Input, error) {
	r, w := io.Pipe()
	in := &Input{w, make(chan error, 1)}
	go func() {
		resp, err := c.post(ctx, r, map[string]string{"Content-Type": records, "Message-Content-Type": protobuf, "Accept": protobuf})
		if err == nil {
			err = resp.Body.Close()
		}
		_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		in.done <- err
	}()
	return in, in.send(&mesosagent.Call_AttachContainerInput{Type: mesosagent.Call_AttachContainerInput_CONTAINER_ID.Enum(), ContainerId: id})
}

func (i *Input) send(m *mesosagent.Call_AttachContainerInput) error {
	raw, err := proto.Marshal(&mesosagent.Call{Type: mesosagent.Call_ATTACH_CONTAINER_INPUT.Enum(), AttachContainerInput: m})
	if err != nil {
		return err
	}
	var record bytes.Buffer
	if err := api.WriteRecord(&record, raw); err != nil {
		return err
	}
	_, err = i.w.Write(record.Bytes())
	return err
}

// End ends the container's input.
func (i *Input) End() error { return i.Send([]byte{}) } // nil would be no data at all

// Send sends input.
func (i *Input) Send(data []byte) error {
	return i.send(&mesosagent.Call_AttachContainerInput{Type: mesosagent.Call_AttachContainerInput_PROCESS_IO.Enum(), ProcessIo: &mesosagent.ProcessIO{
		Type: mesosagent.ProcessIO_DATA.Enum(), Data: &mesosagent.ProcessIO_Data{Type: mesosagent.ProcessIO_Data_STDIN.Enum(), Data: data},
	}})
}

// Close ends the stream and returns the answer's error.
func (i *Input) Close() error {
	_ = i.w.Close()
	return <-i.done
}
