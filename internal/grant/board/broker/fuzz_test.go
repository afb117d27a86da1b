package broker

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/program"
)

// FuzzRequests gives the board a program's messages. For any message, a program can read the
// answer, the handle stays within the agent's grant, and no descriptor stays open.
func FuzzRequests(f *testing.F) {
	for _, m := range []string{
		`{"id":1,"op":"connect","labels":{"app":"db"}}`, `{"op":"serve"}`, `{"op":"narrow","rights":["connect"]}`, `{"op":"show"}`,
		`{"op":"serve","labels":{"client_owner":"x"}}`, `{"op":"narrow","labels":{"a":"\u0000"}}`, `{"op":"connect"}{}`, `[`, ``,
	} {
		f.Add([]byte(m), []byte(m))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := newBroker(socket, 1024, "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(b.ep) }()
		c := b.container("c")
		identity := map[string]string{"client_owner": "cri"}
		granted, err := board.NewHandle(board.Realm{Owner: "cri"}, board.Connect|board.Serve, identity, nil)
		if err != nil {
			t.Fatal(err)
		}
		var others []int
		for range 2 {
			other, err := b.newHandle(c, granted)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, other)
		}
		for _, message := range [][]byte{first, second} {
			for h := range c.handles {
				before := len(b.peers)
				a, other := h.answer(b, message)
				if made := len(b.peers) - before; made > 1 || made == 1 && other < 0 || a.Error != nil && other >= 0 {
					t.Fatalf("%d peers more, descriptor %d, error %v", made, other, a.Error)
				}
				if text, err := program.Encode(a); err != nil || len(text) > program.MaxAnswer {
					t.Fatalf("an answer of %d bytes: %v", len(text), err)
				}
				if other >= 0 {
					others = append(others, other)
				}
			}
		}
		for h := range c.handles {
			if h.handle.Labels()["client_owner"] != "cri" || h.handle.Rights()&^granted.Rights() != 0 {
				t.Fatalf("a handle became %v, %b", h.handle.Labels(), h.handle.Rights())
			}
		}
		for _, fd := range others {
			_ = unix.Close(fd)
		}
		b.revoke(c)
		for len(b.aside) > 0 {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(b.wake), Events: unix.POLLIN}}, -1); err == nil {
				waker(b.wake).ready(b, 0)
			}
		}
		_ = unix.Close(b.wake)
		if len(b.servers) != 0 || len(b.containers) != 0 || len(b.peers) != 2 || c.labels != 0 {
			t.Fatalf("left: %d servers, %d containers, %d peers, %d bytes of labels", len(b.servers), len(b.containers), len(b.peers), c.labels)
		}
		_ = unix.Close(socket)
	})
}
