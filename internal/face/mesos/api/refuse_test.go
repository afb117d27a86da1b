package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener with connections in memory, so that time is synctest's.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// serve serves h and returns a connection to it.
func serve(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	l, ended, gone := make(pipes), make(chan error), make(chan struct{})
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(gone)
		}
	}}
	go func() { ended <- srv.Serve(l) }()
	here, there := net.Pipe()
	l <- there
	t.Cleanup(func() {
		close(l)
		<-ended
		_ = here.Close()
		<-gone
	})
	return here
}

// answer reads one whole answer.
func answer(r *bufio.Reader) string {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

const (
	streamHead = "POST /api/v1 HTTP/1.1\r\nHost: mesos\r\nContent-Type: application/recordio\r\nMessage-Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	firstInput = `{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"a"}}}`
)

// chunk is text as a chunk of a body.
func chunk(text string) string {
	return fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
}

// TestARefusedStreamIsAnsweredAtOnce: the client gets the whole answer while it may
// still send, and when it then ends its stream, the connection serves its next call.
func TestARefusedStreamIsAnsweredAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		first string
		call  func(ctx context.Context, x *Exchange) error
		want  string
	}{
		"by the call": {chunk(records(firstInput)), func(_ context.Context, x *Exchange) error {
			if x.Call.GetAttachContainerInput() == nil {
				return nil
			}
			return &Error{http.StatusConflict, "Multiple input connections are not allowed"}
		}, "409 Multiple input connections are not allowed"},
		"by the call, as it reads on": {chunk(records(firstInput, health)), func(_ context.Context, x *Exchange) error {
			if x.Call.GetAttachContainerInput() == nil {
				return nil
			}
			if err := x.OpenInput(); err != nil {
				return err
			}
			_, err := x.Next()
			return err
		}, "400 Failed to validate agent::Call: Expecting 'type' to be 'ATTACH_CONTAINER_INPUT' instead of: 'GET_HEALTH'"},
		"by its first record": {chunk("x\n"), healthy, "400 Failed to decode length 'x'"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := serve(t, &Handler{Call: c.call, MaxMessage: 4096})
				began, r := time.Now(), bufio.NewReader(conn)
				send(t, conn, streamHead+c.first)
				if got := answer(r); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
				send(t, conn, chunk(strings.Repeat("x", 1<<20))+"0\r\n\r\n")
				send(t, conn, "POST /api/v1 HTTP/1.1\r\nHost: mesos\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n"+health)
				if got := answer(r); !strings.HasPrefix(got, "200 ") {
					t.Errorf("the next call: %q", got)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("somebody waited for %s", took)
				}
			})
		})
	}
}

// TestARefusedStreamIsNotReadForEver: the connection of a client that does not end is
// closed after a time.
func TestARefusedStreamIsNotReadForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serve(t, &Handler{Call: func(context.Context, *Exchange) error { return Forbidden() }, MaxMessage: 4096})
		began, r := time.Now(), bufio.NewReader(conn)
		send(t, conn, streamHead+chunk(records(firstInput)))
		if got := answer(r); got != "403 403 Forbidden." {
			t.Errorf("%q", got)
		}
		if b, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("after the answer: %q, %v", b, err)
		}
		if took := time.Since(began); took != discardTime {
			t.Errorf("closed after %s, want %s", took, discardTime)
		}
	})
}

// TestTooMuchIsAnswered: a client that sends its whole request before it reads finds
// the answer, however much it sent.
func TestTooMuchIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serve(t, &Handler{Call: healthy, MaxMessage: 4096})
		body := strings.Repeat(" ", 8<<20)
		got := make(chan string)
		go func() { // a pipe has no buffer: this is the kernel's, which has room for the answer
			got <- answer(bufio.NewReader(conn))
		}()
		send(t, conn, "POST /api/v1 HTTP/1.1\r\nHost: mesos\r\nContent-Type: application/json\r\nContent-Length: 8388608\r\n\r\n"+body)
		if text := <-got; text != "413 413 Request Entity Too Large." {
			t.Error(text)
		}
	})
}
