package driver

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// fluentd sends messages by fluentd's forward protocol, in its mode "Forward": each batch is one message with many entries.
type fluentd struct {
	to    target
	tag   string
	nano  bool // times have nanoseconds
	acks  bool // each batch waits for its acknowledgement
	of    Source
	conn  net.Conn
	unack []byte // read and not yet used
}

const fluentdPort = "24224"

// parseFluentd reads the options of the driver fluentd.
func parseFluentd(o *options) (func(Source, string) (Sender, error), error) {
	var proto fluentd
	var err error
	if proto.to, err = fluentdTarget(o.or("fluentd-address", "127.0.0.1:"+fluentdPort)); err != nil {
		return nil, err
	}
	if proto.to.network == "unix" {
		o.sockets = append(o.sockets, proto.to.address)
	} else {
		o.remote = true
	}
	if proto.nano, err = o.flag("fluentd-sub-second-precision"); err != nil {
		return nil, err
	}
	if proto.acks, err = o.flag("fluentd-request-ack"); err != nil {
		return nil, err
	}
	if _, err := o.flag("fluentd-async"); err != nil { // a container never waits
		return nil, err
	}
	for _, name := range []string{"fluentd-retry-wait", "fluentd-async-reconnect-interval", "fluentd-read-timeout", "fluentd-write-timeout"} {
		if v := o.get(name); v != "" {
			if d, err := time.ParseDuration(v); err != nil || d < 0 {
				return nil, invalid.Plainf("log option %s %q is no duration", name, v)
			}
		}
	}
	if v := o.get("fluentd-buffer-limit"); v != "" {
		if _, err := ocispec.Bytes(v); err != nil {
			return nil, invalid.Plainf("log option fluentd-buffer-limit %q: %w", v, err)
		}
	}
	if v := o.get("fluentd-max-retries"); v != "" {
		if _, err := strconv.ParseUint(v, 10, 32); err != nil {
			return nil, invalid.Plainf("log option fluentd-max-retries %q is no number", v)
		}
	}
	return func(s Source, tag string) (Sender, error) {
		f := proto
		f.of, f.tag = s, tag
		return &f, nil
	}, nil
}

func fluentdTarget(address string) (target, error) {
	bad := func() (target, error) {
		return target{}, invalid.Plainf("log option fluentd-address %q is not like HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH", address)
	}
	full := address
	if !strings.Contains(address, "://") {
		full = "tcp://" + address
	}
	u, err := url.Parse(full)
	if err != nil {
		return bad()
	}
	port := u.Port()
	if port == "" {
		port = fluentdPort
	}
	t := target{network: "tcp", address: net.JoinHostPort(u.Hostname(), port)}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return bad()
		}
		return target{network: "unix", address: u.Path}, nil
	case "tls":
		t.tls = &tlsFiles{}
	case "tcp":
	default:
		return bad()
	}
	if u.Hostname() == "" || u.Path != "" && u.Path != "/" {
		return bad()
	}
	return t, nil
}

// Send implements Sender.
func (f *fluentd) Send(ctx context.Context, list []Message) error {
	err := f.send(ctx, list)
	if err != nil {
		err = errors.Join(fmt.Errorf("fluentd: %w", err), f.Close())
	}
	return err
}

func (f *fluentd) send(ctx context.Context, list []Message) error {
	if f.conn != nil && closedByPeer(f.conn) {
		_ = f.Close()
	}
	if f.conn == nil {
		conn, err := f.to.dial(ctx)
		if err != nil {
			return err
		}
		f.conn, f.unack = conn, nil
	}
	chunk := ""
	if f.acks {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // it does not fail
		chunk = base64.StdEncoding.EncodeToString(id)
	}
	b, release := buffer()
	b = f.encode(b, list, chunk)
	err := write(ctx, f.conn, b)
	release(b)
	if err != nil {
		return err
	}
	if !f.acks {
		return delivered(ctx, f.conn)
	}
	return f.await(ctx, chunk)
}

// encode returns the protocol's form of a batch: [tag, [[time, record], …], options].
func (f *fluentd) encode(b []byte, list []Message, chunk string) []byte {
	b = appendStr(appendArray(b, 3), f.tag)
	b = appendArray(b, len(list))
	for i := range list {
		b = f.record(appendTime(appendArray(b, 2), list[i].At, f.nano), &list[i])
	}
	if chunk == "" {
		return appendUint(appendStr(appendMap(b, 1), "size"), uint64(len(list)))
	}
	b = appendUint(appendStr(appendMap(b, 2), "size"), uint64(len(list)))
	return appendStr(appendStr(b, "chunk"), chunk)
}

// record appends the record of a message, with docker's keys. An attribute does not replace one of them.
func (f *fluentd) record(b []byte, m *Message) []byte {
	own := map[string]string{"container_id": f.of.ID, "container_name": "/" + f.of.Name, "source": "stdout"}
	if m.Stderr {
		own["source"] = "stderr"
	}
	if p := m.Part; p != nil {
		own["partial_message"], own["partial_id"], own["partial_ordinal"] = "true", p.ID, strconv.Itoa(p.Ordinal)
		own["partial_last"] = strconv.FormatBool(p.Last)
	}
	for k, v := range f.of.Attributes {
		if _, ok := own[k]; !ok && k != "log" {
			own[k] = v
		}
	}
	b = appendPairs(appendMap(b, len(own)+1), own)
	return appendStr(appendStr(b, "log"), m.Text)
}

// await reads the acknowledgement of a chunk.
func (f *fluentd) await(ctx context.Context, chunk string) error {
	if err := f.conn.SetReadDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 512)
	for ctx.Err() == nil {
		ack, rest, err := decodeAck(f.unack)
		if err == nil {
			f.unack = append([]byte(nil), rest...)
			if ack != chunk {
				return errors.New("the service has acknowledged another chunk")
			}
			return nil
		}
		if !errors.Is(err, errShort) {
			return err
		}
		n, err := f.conn.Read(buf)
		f.unack = append(f.unack, buf[:n]...)
		if err != nil && n == 0 {
			return fmt.Errorf("wait for the acknowledgement: %w", err)
		}
	}
	return ctx.Err()
}

// Close implements Sender.
func (f *fluentd) Close() error {
	if f.conn == nil {
		return nil
	}
	err := f.conn.Close()
	f.conn = nil
	return err
}
