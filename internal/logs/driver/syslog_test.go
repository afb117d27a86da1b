package driver

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

func source() Source {
	return Source{
		ID: "0123456789abcdef", Name: "web", Image: "busybox:latest", ImageID: "sha256:fedcba9876543210", Command: "sh -c x",
		Labels: map[string]string{"app": "shop", "bad": "a\nb c"}, Hostname: "node1",
	}
}

// sender returns the sender of a driver with options, given as NAME, VALUE, ….
func sender(t *testing.T, name string, pairs ...string) Sender {
	t.Helper()
	opts := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		opts[pairs[i]] = pairs[i+1]
	}
	d, err := Parse(name, opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Sender(source())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func messages() []Message {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	return []Message{{At: at, Text: []byte("one")}, {At: at, Stderr: true, Text: []byte("two")}}
}

// serve accepts connections one after the other, and returns the lines of all of them.
func serve(t *testing.T, l net.Listener) <-chan string {
	t.Helper()
	lines := make(chan string, 64)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				in := bufio.NewScanner(conn)
				for in.Scan() {
					lines <- in.Text()
				}
			}()
		}
	}()
	return lines
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case l := <-lines:
		return l
	case <-time.After(roottest.Patience()):
		t.Fatal("no line arrives")
		return ""
	}
}

func TestSyslogOnStreams(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	stamp := messages()[0].At.Local().Format(time.Stamp)
	for _, tt := range []struct{ format, want, second string }{
		{"", "<30>" + stamp + " web[" + pid + "]: one", "<27>" + stamp + " web[" + pid + "]: two"},
		{"rfc3164", "<30>" + stamp + " node1 web[" + pid + "]: one", "<27>" + stamp + " node1 web[" + pid + "]: two"},
		{"rfc5424", "<30>1 2026-01-02T03:04:05Z node1 web " + pid + " web - one", "<27>1 2026-01-02T03:04:05Z node1 web " + pid + " web - two"},
		{"rfc5424micro", "<30>1 2026-01-02T03:04:05.678901Z node1 web " + pid + " web - one", "<27>1 2026-01-02T03:04:05.678901Z node1 web " + pid + " web - two"},
	} {
		for _, network := range []string{"tcp", "unix"} {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "log")
			}
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			lines := serve(t, l)
			s := sender(t, "syslog", "syslog-address", network+"://"+l.Addr().String(), "syslog-format", tt.format, "tag", "{{.Name}}")
			if err := s.Send(t.Context(), messages()); err != nil {
				t.Fatal(err)
			}
			if one, two := next(t, lines), next(t, lines); one != tt.want || two != tt.second {
				t.Errorf("format %q on %s: %q, %q", tt.format, network, one, two)
			}
		}
	}
}

func TestSyslogOnDatagrams(t *testing.T) {
	for _, network := range []string{"udp", "unixgram"} {
		address := "127.0.0.1:0"
		if network == "unixgram" {
			address = filepath.Join(t.TempDir(), "log")
		}
		l, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		s := sender(t, "syslog", "syslog-address", network+"://"+l.LocalAddr().String(), "syslog-format", "rfc5424", "syslog-facility", "local3")
		if err := s.Send(t.Context(), messages()); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1000)
		for _, want := range []string{"<158>1 ", "<155>1 "} {
			n, _, err := l.ReadFrom(b)
			if err != nil || !strings.HasPrefix(string(b[:n]), want) || !strings.Contains(string(b[:n]), " 0123456789ab ") {
				t.Errorf("%s: %q, %v", network, b[:n], err)
			}
		}
	}
}

// TestSyslogByTLSCountsItsFrames: RFC 5425. A server with a certificate of another authority gets nothing.
func TestSyslogByTLSCountsItsFrames(t *testing.T) {
	ca := tlsconftest.New(t)
	cert, key := ca.Issue("127.0.0.1")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	got := make(chan string, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(conn)
			length, err := in.ReadString(' ')
			if err != nil {
				continue // a handshake that the client gave up
			}
			n, _ := strconv.Atoi(strings.TrimSpace(length))
			b := make([]byte, n)
			_, _ = io.ReadFull(in, b)
			got <- string(b)
		}
	}()
	address := "tcp+tls://" + l.Addr().String()
	stranger := sender(t, "syslog", "syslog-address", address, "syslog-format", "rfc5424")
	if err := stranger.Send(t.Context(), messages()); err == nil {
		t.Error("a service of an unknown authority got the lines")
	}
	s := sender(t, "syslog", "syslog-address", address, "syslog-format", "rfc5424", "syslog-tls-ca-cert", ca.File, "tag", "x")
	if err := s.Send(t.Context(), messages()[:1]); err != nil {
		t.Fatal(err)
	}
	if one := next(t, got); !strings.HasPrefix(one, "<30>1 2026-01-02T03:04:05Z node1 x ") || !strings.HasSuffix(one, " - one") {
		t.Errorf("%q", one)
	}
}

// TestAPeerThatLeavesHasNotTakenTheLines: bytes that the service did not read are sent again.
func TestAPeerThatLeavesHasNotTakenTheLines(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	s := sender(t, "syslog", "syslog-address", "unix://"+l.Addr().String())
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_ = conn.Close() // without reading
		}
	}()
	if err := s.Send(t.Context(), messages()); err == nil {
		t.Error("nobody has read the lines, and they count as delivered")
	}
	lines := serve(t, l)
	if err := s.Send(t.Context(), messages()); err != nil {
		t.Fatal(err)
	}
	if one := next(t, lines); !strings.HasSuffix(one, ": one") {
		t.Errorf("%q", one)
	}
}

func TestTags(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"plain":                  "plain",
		"{{.ID}}/{{ .FullID }}":  "0123456789ab/0123456789abcdef",
		"{{.Name}}-{{.ImageID}}": "web-fedcba987654",
		"{{.ImageFullID}} {{.ImageName}} {{.DaemonName}} {{.Hostname}} {{.Command}}": "sha256:fedcba9876543210 busybox:latest longshore node1 sh -c x",
		`{{index .ContainerLabels "app"}}{{.ContainerLabels.app}}`:                   "shopshop",
	} {
		tag, err := parseTag(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := tag.expand(source()); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	for _, text := range []string{"{{.Nothing}}", "{{range .ContainerLabels}}x{{end}}", "{{", "}}", "{{printf \"%s\" .ID}}", strings.Repeat("x", maxTag+1)} {
		if _, err := parseTag(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestALabelCannotForgeAHeader: a tag of a hostile label is one word of printable characters.
func TestALabelCannotForgeAHeader(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s := sender(t, "syslog", "syslog-address", "udp://"+l.LocalAddr().String(), "tag", `{{index .ContainerLabels "bad"}}`)
	if err := s.Send(t.Context(), messages()[:1]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1000)
	if n, _, err := l.ReadFrom(b); err != nil || !strings.Contains(string(b[:n]), " a_b_c[") {
		t.Errorf("%q, %v", b[:n], err)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		driver, option, value, says string
	}{
		"driver":   {"gelf", "", "", `log driver "gelf" is not supported: use one of json-file, local, none, `},
		"option":   {"syslog", "color", "red", "unknown log opt 'color' for syslog log driver: it has "},
		"mode":     {"syslog", "mode", "x", "none of blocking"},
		"facility": {"syslog", "syslog-facility", "x", "none of kern to local7"},
		"number":   {"syslog", "syslog-facility", "24", "none of kern to local7"},
		"format":   {"syslog", "syslog-format", "x", "none of rfc3164"},
		"protocol": {"syslog", "syslog-address", "http://a:1", "none of unix"},
		"path":     {"syslog", "syslog-address", "unix://a", "no absolute path"},
		"host":     {"syslog", "syslog-address", "udp://", "not like udp://HOST:PORT"},
		"ca":       {"syslog", "syslog-tls-skip-verify", "maybe", "neither true nor false"},
		"regex":    {"syslog", "env-regex", "(", "env-regex"},
		"size":     {"syslog", "cache-max-size", "x", "cache-max-size"},
		"files":    {"syslog", "cache-max-file", "0", "cache-max-file"},
		"buffer":   {"syslog", "max-buffer-size", "x", "max-buffer-size"},
		"tag":      {"syslog", "tag", "{{.X}}", "tag"},
	} {
		opts := map[string]string{}
		if tt.option != "" {
			opts[tt.option] = tt.value
		}
		if _, err := Parse(tt.driver, opts); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAttributesAreChosenOnce(t *testing.T) {
	d, err := Record("syslog", map[string]string{"labels": "a,none", "labels-regex": "^x", "env": "E"}, map[string]string{"a": "1", "b": "2", "x1": "3"}, []string{"E=4", "F=5"})
	if err != nil || len(d.Attributes) != 3 || d.Attributes["a"]+d.Attributes["x1"]+d.Attributes["E"] != "134" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := Record("syslog", map[string]string{"labels": "a"}, map[string]string{"a": strings.Repeat("x", maxAttributes)}, nil); err == nil {
		t.Error("attributes without a bound")
	}
}
