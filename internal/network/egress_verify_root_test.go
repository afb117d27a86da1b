package network_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// clientHello returns the first record of a TLS client.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}
	go func() { _ = tls.Client(here, cfg).HandshakeContext(ctx) }()
	buf := make([]byte, 16<<10)
	n, err := there.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_ = there.Close()
	return buf[:n]
}

// echoes answers connections to an address of the host: it writes the port, then all bytes that it reads, and ":end" after the last one.
func echoes(t *testing.T, addr string, ports ...string) {
	t.Helper()
	networktest.Run(t, "ip addr add "+addr+" dev world"+map[bool]string{true: " nodad"}[strings.Contains(addr, ":")])
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.WriteString(c, port+":")
					_, _ = io.Copy(c, c)
					_, _ = io.WriteString(c, ":end")
					_ = c.Close()
				}()
			}
		}()
	}
}

// say connects to a server, sends parts, and returns the answer.
func (b box) say(at string, parts ...[]byte) (got string, err error) {
	err = b.ns.Try(func() error {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(roottest.Patience())); err != nil {
			return err
		}
		for _, p := range parts {
			if _, err := c.Write(p); err != nil {
				return err
			}
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // after a reset it fails, and Read as well
		}
		all, err := io.ReadAll(c)
		got = string(all)
		return err
	})
	return got, err
}

func TestVerifiedConnections(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t, "93.184.215.9")
		echoes(t, "93.184.215.1", "80", "443", "8443")
		echoes(t, "93.184.215.2", "80", "443")
		echoes(t, "2600:66::1", "80", "443")
		w.Set("api.example.com", "93.184.215.1", "2600:66::1")
		w.Set("cdn.example.com", "93.184.215.1")
		w.Set("far.example.com", "93.184.215.2")
		w.Set("other.example.com", "93.184.215.1")
		r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
		r.start()
		list := []string{"api.example.com:80,443,8443", "cdn.example.com:443", "*.packages.example", "far.example.com"}
		b := r.restricted(1, append(list, "verify=sni")...)
		free := r.restricted(2, list...)
		for _, x := range []box{b, free} {
			for _, name := range []string{"api.example.com", "cdn.example.com", "far.example.com"} {
				if code, addrs := x.resolve(t, name, dnsmessage.TypeA); code != 0 || len(addrs) == 0 {
					t.Fatalf("%s: %v", name, code)
				}
			}
			x.resolve(t, "api.example.com", dnsmessage.TypeAAAA)
		}
		hello := func(name string) []byte { return clientHello(t, name) }
		get := func(host string) []byte { return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host) }
		split := func(b []byte, at ...int) (parts [][]byte) {
			last := 0
			for _, i := range append(at, len(b)) {
				parts = append(parts, b[last:i])
				last = i
			}
			return parts
		}
		for _, c := range []struct {
			name, at string
			parts    [][]byte
			want     bool
		}{
			{"the name of the address", "93.184.215.1:443", [][]byte{hello("api.example.com")}, true},
			{"in capitals", "93.184.215.1:443", [][]byte{hello("API.example.COM")}, true},
			{"another name of the address", "93.184.215.1:443", [][]byte{hello("cdn.example.com")}, true},
			{"over IPv6", "[2600:66::1]:443", [][]byte{hello("api.example.com")}, true},
			{"in segments", "93.184.215.1:443", split(hello("api.example.com"), 1, 5, 9, 70), true},
			{"in records", "93.184.215.1:443", [][]byte{records(hello("api.example.com"), 100)}, true},
			{"a host", "93.184.215.1:80", [][]byte{get("api.example.com")}, true},
			{"a host with a port", "93.184.215.1:80", [][]byte{get("api.example.com:80")}, true},
			{"two requests", "93.184.215.1:80", [][]byte{get("api.example.com"), get("api.example.com")}, true},
			{"absolute form", "93.184.215.1:80", [][]byte{[]byte("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")}, true},
			{"a body", "93.184.215.1:80", [][]byte{[]byte("POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")}, true},
			{"another port", "93.184.215.1:8443", [][]byte{[]byte("anything")}, true},

			{"another name at the address", "93.184.215.1:443", [][]byte{hello("other.example.com")}, false},
			{"another address of the list for the name", "93.184.215.2:443", [][]byte{hello("api.example.com")}, false},
			{"another name over IPv6", "[2600:66::1]:443", [][]byte{hello("other.example.com")}, false},
			{"a name of a wildcard at the address", "93.184.215.1:443", [][]byte{hello("x.packages.example")}, false},
			{"no name", "93.184.215.1:443", [][]byte{hello("")}, false},
			{"a long hello", "93.184.215.1:443", [][]byte{{22, 3, 1, 64, 0, 1, 0, 80, 0}, bytes.Repeat([]byte{3}, 1<<14-4), {22, 3, 1, 16, 0}, bytes.Repeat([]byte{3}, 1<<12)}, false},
			{"no TLS", "93.184.215.1:443", [][]byte{get("api.example.com")}, false},
			{"another host", "93.184.215.1:80", [][]byte{get("other.example.com")}, false},
			{"another host in absolute form", "93.184.215.1:80", [][]byte{[]byte("GET http://other.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")}, false},
			{"another host in a second request", "93.184.215.1:80", [][]byte{get("api.example.com"), get("other.example.com")}, false},
			{"a host without the port in the list", "93.184.215.1:80", [][]byte{get("cdn.example.com")}, false},
			{"TLS at the port of HTTP", "93.184.215.1:80", [][]byte{hello("api.example.com")}, false},
		} {
			sent := bytes.Join(c.parts, nil)
			port := c.at[strings.LastIndexByte(c.at, ':')+1:]
			want := port + ":" + string(sent) + ":end"
			got, err := b.say(c.at, c.parts...)
			if ok := got == want && err == nil; ok != c.want {
				t.Errorf("%s: %d of %d bytes, %v; want an answer: %t", c.name, len(got), len(want), err, c.want)
			}
			if !c.want && c.name != "another host in a second request" && (got != "" || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE)) {
				t.Errorf("%s: %q %v, want a reset", c.name, got, err)
			}
			if !c.want && strings.Contains(got, "other.example.com") {
				t.Errorf("%s: the server has received it: %q", c.name, got)
			}
			if got, err := free.say(c.at, c.parts...); got != want || err != nil {
				t.Errorf("%s without verify: %d of %d bytes, %v", c.name, len(got), len(want), err)
			}
		}
		b.reaches(t, "udp", "93.184.215.1:443", false)
		raw, err := os.ReadFile(r.net.EgressLog(b.req.Sandbox))
		if err != nil {
			t.Fatal(err)
		}
		log := string(raw)
		for _, text := range []string{`"name":"other.example.com","addr":"93.184.215.1"`, "the ClientHello has no server name", `"kind":"opened","name":"cdn.example.com"`} {
			if !strings.Contains(log, text) {
				t.Errorf("the log lacks %s:\n%s", text, log)
			}
		}
	})
}

// TestVerifiedConnectionsSurviveARenewal replaces the process of the name server, as an upgrade does.
func TestVerifiedConnectionsSurviveARenewal(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t, "93.184.215.9")
		echoes(t, "93.184.215.1", "443")
		w.Set("api.example.com", "93.184.215.1")
		r := newRig(t, nil)
		r.start()
		b := r.restricted(1, "api.example.com", "verify=sni")
		b.resolve(t, "api.example.com", dnsmessage.TypeA)
		hello := clientHello(t, "api.example.com")
		var c net.Conn
		b.ns.Do(t, func() (err error) {
			c, err = net.Dial("tcp", "93.184.215.1:443")
			return err
		})
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(roottest.Patience())); err != nil {
			t.Fatal(err)
		}
		echo := func(sent []byte, want string) {
			t.Helper()
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Fatalf("%q: %v", got, err)
			}
		}
		echo(hello, "443:"+string(hello))
		before := r.net.NamesPid()
		if err := r.net.RenewNames(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := r.net.NamesPid(); now == before {
			t.Errorf("the process is still %d", now)
		}
		echo([]byte("after the renewal"), "after the renewal")
		// The new process has not resolved the name.
		if got, err := b.say("93.184.215.1:443", hello); err != nil || got != "443:"+string(hello)+":end" {
			t.Errorf("a connection after the renewal: %d bytes, %v", len(got), err)
		}
		if got, err := b.say("93.184.215.1:443", clientHello(t, "other.example.com")); err == nil {
			t.Errorf("another name after the renewal: %d bytes", len(got))
		}
	})
}

// records divides the record of a ClientHello.
func records(hello []byte, size int) (out []byte) {
	for rest := hello[5:]; len(rest) > 0; rest = rest[min(size, len(rest)):] {
		n := min(size, len(rest))
		out = append(append(out, 22, 3, 1, byte(n>>8), byte(n)), rest[:n]...)
	}
	return out
}
