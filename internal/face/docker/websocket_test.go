package docker

import (
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/net/websocket"
)

// websocket opens a websocket on the full socket.
func (r *rig) websocket(t *testing.T, path, origin string) (*websocket.Conn, error) {
	t.Helper()
	conf, err := websocket.NewConfig("ws://docker"+path, origin)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := websocket.NewClient(conf, conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws, nil
}

// TestAttachByWebsocket shows that both streams come without frames of their own, in binary messages, that input reaches the program,
// that the websocket ends with the program, and that a client that leaves ends only its session.
func TestAttachByWebsocket(t *testing.T) {
	r := newRig(t)
	r.made(t, "both", `{"Image":"busybox","Cmd":["both"]}`)
	for path, binary := range map[string]bool{"/v1.27/containers/both/attach/ws": false, "/containers/both/attach/ws": true} {
		ws, err := r.websocket(t, path+"?stream=1&stdout=1&stderr=1", "http://docker")
		if err != nil {
			t.Fatal(err)
		}
		r.must(t, 204, "POST", "/containers/both/start", "", nil)
		got := ""
		for {
			f, err := ws.NewFrameReader()
			if err != nil || f.PayloadType() == websocket.CloseFrame {
				break
			}
			if (f.PayloadType() == websocket.BinaryFrame) != binary {
				t.Errorf("%s: frame of type %d", path, f.PayloadType())
			}
			text, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			got += string(text)
		}
		if got != "out\nerr\n" && got != "err\nout\n" {
			t.Errorf("%s: %q", path, got)
		}
	}
	r.made(t, "cat", `{"Image":"busybox","Cmd":["cat"],"OpenStdin":true}`)
	r.must(t, 204, "POST", "/containers/cat/start", "", nil)
	for range 2 {
		ws, err := r.websocket(t, "/containers/cat/attach/ws?stream=1&stdin=1&stdout=1", "http://docker")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = ws.Write([]byte("hello "))
		_ = websocket.Message.Send(ws, []byte("again"))
		got := make([]byte, len("hello again"))
		if _, err := io.ReadFull(ws, got); err != nil || string(got) != "hello again" {
			t.Errorf("%q, %v", got, err)
		}
		_ = ws.Close()
	}
	r.must(t, 204, "POST", "/containers/cat/kill", "", nil) // it runs
	for path, origin := range map[string]string{
		"/containers/cat/attach/ws?stream=1":  "http://evil.example",
		"/containers/none/attach/ws?stream=1": "http://docker",
	} {
		if _, err := r.websocket(t, path, origin); !errors.Is(err, websocket.ErrBadStatus) {
			t.Errorf("%s from %s: %v", path, origin, err)
		}
	}
}
