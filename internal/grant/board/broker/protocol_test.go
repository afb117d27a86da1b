package broker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/program"
)

// raw is a handle as a program has it that does not speak as it should.
type raw struct {
	t  *testing.T
	fd int
}

func (n *node) raw(container string, rights board.Rights) raw {
	n.t.Helper()
	f, err := n.Handle(n.t.Context(), broker.Want{Container: container, Realm: board.Realm{Owner: "cri"}, Rights: rights})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = f.Close() })
	return raw{n.t, int(f.Fd())}
}

// ask sends a message with a descriptor, and returns the answer with the one that it brings, which the caller closes; "" is the end.
func (r raw) ask(message string, descriptor int) (string, int) {
	r.t.Helper()
	var rights []byte
	if descriptor >= 0 {
		rights = unix.UnixRights(descriptor)
	}
	if err := unix.Sendmsg(r.fd, []byte(message), rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return "", -1
	}
	b, oob := make([]byte, program.MaxAnswer), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(r.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n <= 0 {
		return "", -1
	}
	other := -1
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			other = fds[0]
		}
	}
	return string(b[:n]), other
}

// TestWhatTheProtocolDoesNotHave: an agent's requests over a handle, answers to the board, descriptors and empty messages get
// nobody anything, and harm nobody else.
func TestWhatTheProtocolDoesNotHave(t *testing.T) {
	n := start(t)
	r := n.raw("attacker", board.Serve|board.Connect)
	before := n.descriptors()
	for _, message := range []string{
		`{"op":"hello","rules":[{}]}`, `{"op":"handle","container":"victim","realm":{"owner":"cli"},"rights":3}`, `{"op":"drop","container":"victim"}`,
		`{"op":"connect","realm":{"owner":"cli"}}`, `{"op":"narrow","rights":["admin"]}`, `{"op":"show","rights":["serve"]}`, `{"op":"serve"}{"op":"serve"}`,
		`{"op":"serve","labels":{"a":1}}`, `[]`, `null`, "\x00", strings.Repeat("[", 20000),
	} {
		if answer, other := r.ask(message, -1); other >= 0 || !strings.Contains(answer, `"code":"invalid"`) {
			t.Errorf("%.60s: answered %q", message, answer)
		}
	}
	roottest.Eventually(t, "no descriptor is left", func() bool { return n.descriptors() == before })
	answer, server := r.ask(`{"id":7,"op":"serve","labels":{"app":"db"}}`, -1)
	if server < 0 {
		t.Fatal(answer)
	}
	defer func() { _ = unix.Close(server) }()
	if err := unix.Sendmsg(server, []byte(`{"labels":{}}`), unix.UnixRights(0), nil, unix.MSG_NOSIGNAL); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a server writes to the board: %v", err)
	}
	answer, c := r.ask(`{"id":8,"op":"connect","labels":{"app":"db"}}`, -1)
	if c < 0 || !strings.HasPrefix(answer, `{"id":8,"labels":{"app":"db"}`) {
		t.Errorf("after all that: %q", answer)
	}
	defer func() { _ = unix.Close(c) }()
	// A server that reads no more has ended.
	if err := unix.Shutdown(server, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if answer, _ := r.ask(`{"op":"connect"}`, -1); !strings.Contains(answer, `"code":"no_server"`) {
		t.Errorf("a server that reads no more: %q", answer)
	}
	// A program that sends an empty message, or reads nothing more, loses its handle; others keep
	// theirs.
	silent, deaf := n.raw("silent", board.Connect), n.raw("deaf", board.Connect)
	if answer, _ := silent.ask("", -1); answer != "" {
		t.Errorf("an empty message is answered by %q", answer)
	}
	if err := unix.Shutdown(deaf.fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if answer, _ := deaf.ask(`{"op":"show"}`, -1); answer != "" {
		t.Errorf("one that reads nothing reads %q", answer)
	}
	if answer, _ := r.ask(`{"op":"show"}`, -1); !strings.Contains(answer, `"rights":["connect","serve"]`) {
		t.Errorf("show: %q", answer)
	}
	roottest.Eventually(t, "the handles are given back", func() bool { return n.status().Handles == 1 })
}

// lingering returns a TCP socket; the close of its last descriptor blocks.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	small := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096) })
	}
	c, err := (&net.Dialer{Control: small}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
	for err == nil { // until its peer, which reads nothing, has no room
		err = unix.Sendto(fd, make([]byte, 64<<10), unix.MSG_DONTWAIT, nil)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return f
}

// TestADescriptorThatLingersHoldsNobodyUp: programs leave sockets that linger for an hour where the
// board closes them last: in its own sockets, and in a connection that it makes.
func TestADescriptorThatLingersHoldsNobodyUp(t *testing.T) {
	n := start(t)
	realm := board.Realm{Owner: "cri"}
	say(n.serve(n.handle("good", realm, board.Serve, map[string]string{"app": "good"}), nil), "good")
	client := n.handle("client", realm, board.Connect, map[string]string{"app": "good"})
	works := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		c, err := client.Connect(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	for _, messages := range [][]string{{`{"op":"show"}`}, {``}, {strings.Repeat("x", program.MaxRequest+1)}, {`{"op":"show"}`, `{"op":"show"}`}} {
		r, f := n.raw("attacker", board.Connect), lingering(t)
		for _, m := range messages {
			if err := unix.Sendmsg(r.fd, []byte(m), unix.UnixRights(int(f.Fd())), nil, unix.MSG_NOSIGNAL); err != nil && !errors.Is(err, unix.EPIPE) {
				t.Fatal(err)
			}
		}
		_ = f.Close()
		works()
		if answer, _ := r.ask(`{"op":"show"}`, -1); answer != "" {
			t.Errorf("a handle over which descriptors came is answered %q", answer)
		}
	}
	// A server fills each connection at once, and the client gives it back at once.
	server := n.serve(n.handle("attacker-2", realm, board.Serve, map[string]string{"app": "bad"}), nil)
	var sockets []*os.File
	for range 50 {
		sockets = append(sockets, lingering(t))
	}
	stuffed := make(chan int, 1)
	go func() {
		all := 0
		for _, f := range sockets {
			c, err := server.AcceptConn()
			if err != nil {
				t.Error(err)
				break
			}
			if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(f.Fd())), nil); err == nil {
				all++
			}
			go func() { _, _ = f.Close(), c.Close() }()
		}
		stuffed <- all
	}()
	bad := n.raw("attacker-3", board.Connect)
	for range sockets {
		other := -1
		roottest.Eventually(t, "the board answers with a connection", func() bool {
			var answer string
			answer, other = bad.ask(`{"op":"connect","labels":{"app":"bad"}}`, -1)
			if other < 0 && !strings.Contains(answer, `"busy"`) { // busy: the server's last ones are unread
				t.Fatal(answer)
			}
			return other >= 0
		})
		go func() { _ = unix.Close(other) }()
	}
	t.Logf("%d connections had the socket", <-stuffed)
	works()
}
