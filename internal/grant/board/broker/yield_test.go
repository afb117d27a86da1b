package broker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
)

// sockets returns two connected sockets. The test closes them.
func sockets(t *testing.T) (one, other int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// populated returns a state with a socket, two containers, three handles and a server, and the programs' ends.
func populated(t *testing.T) (b *broker, programs []int) {
	t.Helper()
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = newBroker(socket, 1024, ""); err != nil {
		t.Fatal(err)
	}
	h, err := board.NewHandle(board.Realm{Owner: "cri"}, board.Connect|board.Serve, map[string]string{"client_owner": "cri"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "b"} {
		fd, err := b.newHandle(b.container(id), h)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, fd)
	}
	fd, err := b.serve(b.container("a"), h)
	if err != nil {
		t.Fatal(err)
	}
	b.setRules(board.Rules{{Client: board.Realm{Owner: "ops"}, Server: board.Realm{Owner: "cri"}}})
	t.Cleanup(func() { closeAll(b, programs) })
	return b, append(programs, fd)
}

func closeAll(b *broker, programs []int) {
	for fd := range b.peers {
		_ = unix.Close(fd)
	}
	for _, fd := range programs {
		_ = unix.Close(fd)
	}
	_ = unix.Close(b.ep)
}

// next returns an empty state of the next process.
func next(t *testing.T) *broker {
	t.Helper()
	b, err := emptyBroker(1024, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(b, nil) })
	return b
}

// sums describes a state by its numbers.
func sums(b *broker) string {
	handles, servers := 0, 0
	for _, c := range b.containers {
		handles, servers = handles+len(c.handles), servers+len(c.servers)
	}
	return fmt.Sprintf("%d containers, %d handles, %d servers of %d and %d, %d rules", len(b.containers), handles, servers, len(b.servers), len(b.match.Order()), len(b.rules))
}

// TestTheProcessBeforeContinues: if the next process dies after any message, the process before has everything and does not end.
func TestTheProcessBeforeContinues(t *testing.T) {
	const items = 8 // socket, two containers, three handles, a server, end
	for stage := range items + 1 {
		t.Run(fmt.Sprint(stage), func(t *testing.T) {
			b, _ := populated(t)
			own, other := sockets(t)
			had := sums(b)
			go func() { // dies after so many messages
				buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
				for range stage {
					if _, oobn, _, err := receive(other, buf, oob); err == nil {
						for _, fd := range descriptors(oob[:oobn]) {
							_ = unix.Close(fd)
						}
					}
				}
				_ = unix.Close(other)
			}()
			if err := b.yield(own); err == nil || b.ended || sums(b) != had {
				t.Errorf("yield: %v, ended: %v, has %s, had %s", err, b.ended, sums(b), had)
			}
			withdrawn(own).ready(b, unix.EPOLLHUP)
			if _, ok := b.peers[own]; ok {
				t.Error("the socket stays")
			}
		})
	}
}

// TestTheProcessBeforeWithdraws: a next process that is late does not continue beside the one before.
func TestTheProcessBeforeWithdraws(t *testing.T) {
	b, _ := populated(t)
	own, other := sockets(t)
	if err := bounded(own, yieldStep); err != nil {
		t.Fatal(err)
	}
	if err := b.yield(own); err == nil || b.ended { // nobody answers
		t.Fatalf("%v, ended: %v", err, b.ended)
	}
	n := next(t)
	if err := n.inherit(other); err == nil || !strings.Contains(err.Error(), "the process before continues") {
		t.Errorf("the next process: %v", err)
	}
	_, _ = unix.Close(own), unix.Close(other)
	delete(b.peers, own)
}

// TestTheNextProcessContinues: the next process has everything, also if the process before dies after any message.
func TestTheNextProcessContinues(t *testing.T) {
	b, _ := populated(t)
	had := sums(b)
	own, other := sockets(t)
	n, inherited := next(t), make(chan error, 1)
	go func() { inherited <- n.inherit(other) }()
	if err, nerr := b.yield(own), <-inherited; err != nil || nerr != nil || !b.ended || sums(n) != had {
		t.Errorf("%v, %v, ended: %v, has %s, want %s", err, nerr, b.ended, sums(n), had)
	}
	_, _ = unix.Close(own), unix.Close(other)

	items := recorded(t, b)
	for i := range len(items) + 1 {
		own, other := sockets(t)
		for _, it := range items[:i] {
			if err := sendItem(own, it.item, it.fd); err != nil {
				t.Fatal(err)
			}
		}
		_ = unix.Close(own)
		n := next(t)
		if err := n.inherit(other); (err == nil) != (i > 0) {
			t.Errorf("after %d messages: %v", i, err)
		}
		if i == len(items) && sums(n) != had {
			t.Errorf("after all messages: %s, want %s", sums(n), had)
		}
		_ = unix.Close(other)
	}
}

type sent struct {
	item item
	fd   int
}

// recorded returns the items of a state, with descriptors that the test closes.
func recorded(t *testing.T, b *broker) (all []sent) {
	t.Helper()
	own, other := sockets(t)
	if err := b.sendAll(own); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(own)
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, err := receive(other, buf, oob)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			_ = unix.Close(other)
			return all
		}
		s := sent{fd: -1}
		if err := json.Unmarshal(buf[:n], &s.item); err != nil {
			t.Fatal(err)
		}
		for _, fd := range descriptors(oob[:oobn]) {
			s.fd = fd
			t.Cleanup(func() { _ = unix.Close(fd) })
		}
		all = append(all, s)
	}
}

// FuzzItems gives the next process messages of another one. It takes each as an item or refuses it, and keeps no descriptor of a refused one.
func FuzzItems(f *testing.F) {
	for _, m := range []string{
		`{"kind":"socket","rules":[{"client":{"owner":"a"}}],"made":3}`, `{"kind":"container","container":"c"}`, `{"kind":"handle","container":"c","rights":3,"labels":{"a":"b"}}`,
		`{"kind":"server","container":"c","rights":1,"labels":{"a":"b"}}`, `{"kind":"server","container":"c","rights":2}`, `{"kind":"end","count":2}`, `{"kind":"end","count":2}{}`, `{"later":1}`, `[`, ``,
	} {
		f.Add([]byte(m), []byte(m), true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, with bool) {
		b, err := emptyBroker(64+8, "")
		if err != nil {
			t.Fatal(err)
		}
		var open []int
		for i, m := range [][]byte{[]byte(`{"kind":"socket"}`), []byte(`{"kind":"container","container":"c"}`), first, second} {
			var came []int
			if i == 0 || i > 1 && with {
				own, other := sockets(t)
				came, open = []int{own}, append(open, other)
			}
			held := len(b.peers)
			end, err := b.take(m, came, i)
			kept := len(came) == 1 && came[0] == -1
			if more := len(b.peers) - held; kept != (more == 1) || more > 1 || err != nil && (end || kept) || i < 2 && err != nil {
				t.Fatalf("message %d: %d peers more, kept: %v, end: %v, %v", i, more, kept, end, err)
			}
			if len(came) == 1 && !kept {
				_ = unix.Close(came[0])
			}
		}
		labels := 0
		for _, c := range b.containers {
			for h := range c.handles {
				labels += size(h.handle.Labels())
			}
			for s := range c.servers {
				labels += s.size
			}
			labels -= c.labels
		}
		if labels != 0 || len(b.servers) != len(b.match.Order()) {
			t.Fatalf("%d bytes of labels too many, %s", labels, sums(b))
		}
		closeAll(b, open)
	})
}
