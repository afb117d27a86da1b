package stream

import (
	"context"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/longshore/longshore/internal/connlimit/connlimittest"
)

// TestAFloodKeepsNobodyOut: beside 1,356 connections without a token a client gets its stream, and
// an earlier one continues.
func TestAFloodKeepsNobodyOut(t *testing.T) {
	hello := func(ctx context.Context, _ Request, s Session) (int, error) {
		_, err := s.Stdout.Write([]byte("hello"))
		if err == nil && s.Stdin != nil {
			buf := make([]byte, 1)
			_, err = s.Stdin.Read(buf)
		}
		return 0, err
	}
	cfg := config()
	cfg.MaxStreams, cfg.PerPeer, cfg.Unauthenticated = 2048, 1024, 128
	s := start(t, cfg, fake{exec: hello})
	before := dial(t, s, all(), "v5.channel.k8s.io")
	var msg []byte
	greeted := func(ws *websocket.Conn) {
		t.Helper()
		for string(msg) != "\x01hello" {
			if err := websocket.Message.Receive(ws, &msg); err != nil {
				t.Fatal(err)
			}
		}
		msg = nil
	}
	greeted(before)
	connlimittest.Flood(t, s.base.Host, 1100, nil, connlimittest.HalfOpen()...)
	connlimittest.Flood(t, s.base.Host, 256, nil, "GET /exec/none HTTP/1.1\r\nHost: x\r\n\r\n")
	began := time.Now()
	after := dial(t, s, all(), "v5.channel.k8s.io")
	greeted(after)
	t.Logf("answered after %s", time.Since(began))
	for _, ws := range []*websocket.Conn{before, after} {
		if err := websocket.Message.Send(ws, []byte("\x00x")); err != nil {
			t.Fatal(err)
		}
		if got := rest(ws); got[3] == "" {
			t.Errorf("a session ended with %q", got)
		}
	}
}
