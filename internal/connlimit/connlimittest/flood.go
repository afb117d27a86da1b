// Package connlimittest floods listeners, for tests.
package connlimittest

import (
	"crypto/tls"
	"net"
	"testing"
)

// HalfOpen returns beginnings of requests that are never completed: nothing at all, part of a TLS
// handshake, part of a head, and a head without its body.
func HalfOpen() []string {
	return []string{
		"", "\x16\x03\x01\x02\x00\x01", "POST /api/v1 HTTP/1.1\r\nHost: ",
		"POST /api/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
	}
}

// Flood opens n connections to address, each of which sends one of the texts, and keeps them open
// until the test ends. With conf it uses TLS, except for connections that send nothing. A
// connection that the server has closed meanwhile is not an error.
func Flood(t testing.TB, address string, n int, conf *tls.Config, texts ...string) {
	t.Helper()
	for i := range n {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatalf("connection %d of the flood: %v", i, err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if text := texts[i%len(texts)]; text != "" {
			if conf != nil && text[0] != 0x16 {
				c = tls.Client(c, conf)
			}
			_, _ = c.Write([]byte(text))
		}
	}
}
