package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/invalid"
)

// Client asks a hub.
type Client struct {
	http  *http.Client
	base  string
	token string // "" for none
	// Notify, if not nil, is called with the notice of an answer that may be out of date.
	Notify func(notice string)
}

// NewClient is a client of the hub at a socket.
func NewClient(socket string) *Client {
	return &Client{base: "http://hub", http: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}}
}

// Remote says how a hub is reached over TCP.
type Remote struct {
	URL string
	// Roots is the hub's root certificate, as PEM.
	Roots []byte
	// Certificates is the operator's certificate, or Token its token.
	Certificates []tls.Certificate
	Token        string
}

// NewRemote is a client of a hub over TCP.
func NewRemote(r Remote) (*Client, error) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" {
		return nil, invalid.Errorf("a hub is reached at https://HOST:PORT, not %.100q", r.URL)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(r.Roots) {
		return nil, invalid.Errorf("there is no certificate in the file with the hub's root")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: ca.NameAPI, VerifyConnection: ca.IsHub, Certificates: r.Certificates}
	return &Client{base: "https://" + u.Host, token: r.Token, http: &http.Client{Transport: &http.Transport{TLSClientConfig: config, TLSHandshakeTimeout: headerTimeout}}}, nil
}

// do makes a request, and returns the answer's body.
func (c *Client) do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("the hub does not answer: %w", err)
	}
	if text := resp.Header.Get(NoticeHeader); text != "" && c.Notify != nil {
		c.Notify(text)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		var f hubv1.Failure
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxHeaders)).Decode(&f); err != nil || f.Error == "" {
			f.Error = resp.Status
		}
		return nil, errors.New(f.Error)
	}
	return resp.Body, nil
}

// Call asks for one answer.
func (c *Client) Call(ctx context.Context, method, path string, body, answer any) error {
	r, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if err := json.NewDecoder(r).Decode(answer); err != nil {
		return fmt.Errorf("the hub's answer cannot be read: %w", err)
	}
	return nil
}

// Apply applies a declaration, or, when dry, returns its changes only.
func (c *Client) Apply(ctx context.Context, d fleet.Declaration, dry bool) (diff []hubv1.Difference, err error) {
	path := "/v1/stacks"
	if dry {
		path += "?dry=1"
	}
	return diff, c.Call(ctx, http.MethodPut, path, d, &diff)
}

// Events calls fn with each event after a cursor.
func (c *Client) Events(ctx context.Context, after int64, follow bool, fn func(hubv1.Event) error) error {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}}
	if follow {
		q.Set("follow", "1")
	}
	return lines(ctx, c, "/v1/events?"+q.Encode(), fn)
}

// Logs calls fn with each line of the output of a service or task.
func (c *Client) Logs(ctx context.Context, of string, follow bool, tail int, fn func(hubv1.Line) error) error {
	q := url.Values{"of": {of}}
	if follow {
		q.Set("follow", "1")
	}
	if tail >= 0 {
		q.Set("tail", strconv.Itoa(tail))
	}
	return lines(ctx, c, "/v1/logs?"+q.Encode(), fn)
}

// lines calls fn with each line of an answer.
func lines[T any](ctx context.Context, c *Client, path string, fn func(T) error) error {
	r, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	dec := json.NewDecoder(r)
	for {
		var l T
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the hub's answer ended: %w", err)
		}
		if err := fn(l); err != nil {
			return err
		}
	}
}
