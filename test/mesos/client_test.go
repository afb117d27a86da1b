package mesos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/test/nodetest"
)

type object = map[string]any

// client calls the agent API.
type client struct {
	t    *testing.T
	n    *nodetest.Node
	http http.Client
}

func newClient(t *testing.T, n *nodetest.Node) *client {
	t.Helper()
	path := filepath.Join(n.State, "mesos.sock")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}
	return &client{t: t, n: n, http: http.Client{Transport: tr}}
}

// start posts a call; the payload has its type's name.
func (c *client) start(ctx context.Context, kind string, payload object, accept string) *http.Response {
	c.t.Helper()
	body, err := json.Marshal(object{"type": kind, strings.ToLower(kind): payload})
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mesos/api/v1", bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", accept)
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", body, err, c.n.LogTail(2000))
	}
	return resp
}

// call posts a call and returns the answer.
func (c *client) call(kind string, payload object) (int, string) {
	c.t.Helper()
	resp := c.start(c.t.Context(), kind, payload, "application/json")
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// is posts a call and wants this answer.
func (c *client) is(kind string, payload object, code int, text string) {
	c.t.Helper()
	if got, said := c.call(kind, payload); got != code || said != text {
		c.t.Errorf("%s %v:\n%d %q, want\n%d %q\n%s", kind, payload, got, said, code, text, c.n.LogTail(1000))
	}
}

// file reads a file of a container's sandbox.
func (c *client) file(path string) string {
	c.t.Helper()
	code, text := c.call("READ_FILE", object{"path": filepath.Join(c.n.Root, "mesos", "containers", path), "offset": 0})
	var resp struct {
		ReadFile struct{ Data []byte } `json:"read_file"`
	}
	if err := json.Unmarshal([]byte(text), &resp); err != nil || code != http.StatusOK {
		c.t.Errorf("%s: %d %q, %v", path, code, text, err)
	}
	return string(resp.ReadFile.Data)
}

// record is one of a stream of output.
type record struct {
	Type string
	Data struct {
		Type string
		Data []byte
	}
}

// records reads a stream until it ends or done says so; it returns the output by
// its kind.
func records(r io.Reader, done func(map[string]string) bool) (map[string]string, error) {
	all := map[string]string{}
	err := follow(r, func(rec record) bool {
		all[rec.Data.Type] += string(rec.Data.Data)
		return done(all)
	})
	return all, err
}

// follow gives every record of a stream to done until that says so, or the stream
// ends.
func follow(r io.Reader, done func(record) bool) error {
	for {
		// No further than the record: another one may read on.
		var length []byte
		for b := make([]byte, 1); ; length = append(length, b[0]) {
			if _, err := io.ReadFull(r, b); err != nil {
				if errors.Is(err, io.EOF) && len(length) == 0 {
					return nil
				}
				return err
			}
			if b[0] == '\n' {
				break
			}
		}
		n, err := strconv.Atoi(string(length))
		if err != nil {
			return fmt.Errorf("a length of %q", length)
		}
		raw := make([]byte, n)
		if _, err := io.ReadFull(r, raw); err != nil {
			return err
		}
		var rec record
		if err := json.Unmarshal(raw, &rec); err != nil {
			return err
		}
		if done(rec) {
			return nil
		}
	}
}

// input sends records of input to a container and returns the answer.
func (c *client) input(id object, list ...object) (int, string) {
	c.t.Helper()
	var body bytes.Buffer
	put := func(in object) {
		raw, err := json.Marshal(object{"type": "ATTACH_CONTAINER_INPUT", "attach_container_input": in})
		if err != nil {
			c.t.Fatal(err)
		}
		fmt.Fprintf(&body, "%d\n%s", len(raw), raw)
	}
	put(object{"type": "CONTAINER_ID", "container_id": id})
	for _, m := range list {
		put(object{"type": "PROCESS_IO", "process_io": m})
	}
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://mesos/api/v1", &body)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/recordio")
	r.Header.Set("Message-Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func stdin(data string) object {
	return object{"type": "DATA", "data": object{"type": "STDIN", "data": []byte(data)}}
}
