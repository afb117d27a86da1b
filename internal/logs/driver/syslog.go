package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/invalid"
)

// syslogger sends messages to a syslog service.
type syslogger struct {
	to       []target // the first that answers
	facility int
	format   func(b []byte, s *syslogger, m *Message) []byte
	counted  bool // frames begin with their length (RFC 5425)
	tag      string
	host     string
	conn     net.Conn
}

const (
	severityErr  = 3
	severityInfo = 6
)

// facilities has the numbers of RFC 5424, by their usual names.
func facilities() map[string]int {
	all := map[string]int{}
	for i, name := range []string{
		"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "", "", "", "",
		"local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
	} {
		if name != "" {
			all[name] = i
		}
	}
	return all
}

// parseSyslog reads the options of the driver syslog.
func parseSyslog(o *options) (func(Source, string) (Sender, error), error) {
	to, err := syslogTargets(o)
	if err != nil {
		return nil, err
	}
	proto := syslogger{to: to}
	facility := o.or("syslog-facility", "daemon")
	n, ok := facilities()[facility]
	if !ok {
		if n, err = strconv.Atoi(facility); err != nil || n < 0 || n > 23 {
			return nil, invalid.Plainf("log option syslog-facility %q is none of kern to local7, and no number from 0 to 23", facility)
		}
	}
	proto.facility = n
	switch format := o.get("syslog-format"); format {
	case "":
		proto.format = formatLocal
	case "rfc3164":
		proto.format = format3164
	case "rfc5424", "rfc5424micro":
		proto.format, proto.counted = format5424, to[0].tls != nil
		if format == "rfc5424micro" {
			proto.format = format5424micro
		}
	default:
		return nil, invalid.Plainf("log option syslog-format %q is none of rfc3164, rfc5424, rfc5424micro", format)
	}
	return func(s Source, tag string) (Sender, error) {
		l := proto
		l.tag, l.host = tag, s.Hostname
		return &l, nil
	}, nil
}

// syslogTargets returns the addresses of the service: that of the option, or the node's own sockets.
func syslogTargets(o *options) ([]target, error) {
	files := &tlsFiles{ca: o.get("syslog-tls-ca-cert"), cert: o.get("syslog-tls-cert"), key: o.get("syslog-tls-key")}
	var err error
	if files.skip, err = o.flag("syslog-tls-skip-verify"); err != nil {
		return nil, err
	}
	address := o.get("syslog-address")
	if address == "" {
		var list []target
		for _, path := range []string{"/dev/log", "/var/run/syslog", "/var/run/log"} {
			list = append(list, target{network: "unixgram", address: path})
		}
		return list, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, invalid.Plainf("log option syslog-address %q: it is not like udp://HOST:PORT", address)
	}
	switch u.Scheme {
	case "unix", "unixgram":
		if !strings.HasPrefix(u.Path, "/") || u.Host != "" {
			return nil, invalid.Plainf("log option syslog-address %q: it has no absolute path", address)
		}
		o.sockets = append(o.sockets, u.Path)
		return []target{{network: u.Scheme, address: u.Path}}, nil
	case "udp", "tcp", "tcp+tls":
		if u.Hostname() == "" || u.Path != "" {
			return nil, invalid.Plainf("log option syslog-address %q: it is not like %s://HOST:PORT", address, u.Scheme)
		}
		port := u.Port()
		if port == "" {
			port = "514"
		}
		t := target{network: "udp", address: net.JoinHostPort(u.Hostname(), port)}
		if u.Scheme != "udp" {
			t.network = "tcp"
		}
		o.remote = true
		if u.Scheme == "tcp+tls" {
			t.tls, o.files = files, append(o.files, files)
		}
		return []target{t}, nil
	}
	return nil, invalid.Plainf("log option syslog-address %q: its protocol is none of unix, unixgram, udp, tcp, tcp+tls", address)
}

func (l *syslogger) priority(m *Message) int {
	if m.Stderr {
		return l.facility*8 + severityErr
	}
	return l.facility*8 + severityInfo
}

// formatLocal is the format for the node's own service, which knows the host.
func formatLocal(b []byte, l *syslogger, m *Message) []byte {
	b = fmt.Appendf(b, "<%d>%s %s[%d]: ", l.priority(m), m.At.Local().Format(time.Stamp), plain(l.tag, maxTag), os.Getpid())
	return append(b, m.Text...)
}

func format3164(b []byte, l *syslogger, m *Message) []byte {
	b = fmt.Appendf(b, "<%d>%s %s %s[%d]: ", l.priority(m), m.At.Local().Format(time.Stamp), plain(l.host, 255), plain(l.tag, maxTag), os.Getpid())
	return append(b, m.Text...)
}

func format5424(b []byte, l *syslogger, m *Message) []byte {
	return append5424(b, l, m, time.RFC3339)
}

func format5424micro(b []byte, l *syslogger, m *Message) []byte {
	return append5424(b, l, m, "2006-01-02T15:04:05.000000Z07:00")
}

// append5424 appends a message of RFC 5424. The tag is the name of the application and of the message.
func append5424(b []byte, l *syslogger, m *Message, stamp string) []byte {
	b = fmt.Appendf(b, "<%d>1 %s %s %s %d %s - ", l.priority(m), m.At.Format(stamp), plain(l.host, 255), plain(l.tag, 48), os.Getpid(), plain(l.tag, 32))
	return append(b, m.Text...)
}

// Send implements Sender. On a stream it waits until the service's node has acknowledged the bytes.
func (l *syslogger) Send(ctx context.Context, list []Message) error {
	if err := l.connect(ctx); err != nil {
		return err
	}
	err := l.send(ctx, list)
	if err != nil {
		err = errors.Join(fmt.Errorf("syslog: %w", err), l.Close())
	}
	return err
}

// connect connects if there is no usable connection.
func (l *syslogger) connect(ctx context.Context) error {
	if l.conn != nil && l.stream() && closedByPeer(l.conn) {
		_ = l.Close()
	}
	if l.conn != nil {
		return nil
	}
	var errs []error
	for i := range l.to {
		conn, err := l.to[i].dial(ctx)
		if err == nil {
			l.conn = conn
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("syslog: %w", errors.Join(errs...))
}

func (l *syslogger) stream() bool {
	switch l.conn.LocalAddr().Network() {
	case "udp", "unixgram":
		return false
	}
	return true
}

func (l *syslogger) send(ctx context.Context, list []Message) error {
	stream := l.stream()
	out, releaseOut := buffer()
	one, releaseOne := buffer()
	defer func() {
		releaseOut(out)
		releaseOne(one)
	}()
	for i := range list {
		one = l.format(one[:0], l, &list[i])
		switch {
		case !stream:
			if err := writeOnce(ctx, l.conn, one); err != nil {
				return err
			}
		case l.counted:
			out = strconv.AppendInt(out, int64(len(one)), 10)
			out = append(out, ' ')
			out = append(out, one...)
		default:
			out = append(out, one...)
			out = append(out, '\n')
		}
	}
	if !stream {
		return nil
	}
	if err := write(ctx, l.conn, out); err != nil {
		return err
	}
	return delivered(ctx, l.conn)
}

// Close implements Sender.
func (l *syslogger) Close() error {
	if l.conn == nil {
		return nil
	}
	err := l.conn.Close()
	l.conn = nil
	return err
}
