package names

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// upstream is a name server that answers as reply says.
func upstream(t *testing.T, reply func(question []byte) [][]byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, maxUDP)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, r := range reply(slices.Clone(buf[:n])) {
				_, _ = conn.WriteTo(r, from)
			}
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// answered is a server's answer to a question for any name.
func answered(q []byte, addr byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(q) != nil {
		return nil
	}
	m.Response = true
	m.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, addr}},
	}}
	b, _ := m.Pack()
	return b
}

// server is the name server's process, without confinement, and an agent's connection to it.
type server struct {
	t     *testing.T
	p     *process
	agent *net.UnixConn
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, p: newProcess()}
	go s.p.accept(l)
	if s.agent, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: l.Addr().String(), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.agent.Close()
		_ = l.Close()
		s.p.mu.Lock()
		boxes := s.p.boxes
		s.p.mu.Unlock()
		for _, b := range boxes {
			b.close()
		}
	})
	return s
}

func (s *server) do(req request, files ...*os.File) error {
	s.t.Helper()
	if err := send(s.agent, req, files); err != nil {
		s.t.Fatal(err)
	}
	var resp response
	if _, err := receive(s.agent, &resp); err != nil {
		s.t.Fatal(err)
	}
	if resp.Error != "" {
		return errors.New(resp.Error)
	}
	return nil
}

func (s *server) must(req request, files ...*os.File) {
	s.t.Helper()
	if err := s.do(req, files...); err != nil {
		s.t.Fatal(err)
	}
}

// client is one that asks a sandbox's name server.
type client struct {
	t        *testing.T
	udp, tcp string
}

// sandbox has a sandbox answered.
func (s *server) sandbox(req request) client {
	s.t.Helper()
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		s.t.Fatal(err)
	}
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		s.t.Fatal(err)
	}
	c := client{s.t, udp.LocalAddr().String(), tcp.Addr().String()}
	one, err := udp.File()
	two, err2 := tcp.File()
	if err := errors.Join(err, err2, udp.Close(), tcp.Close()); err != nil {
		s.t.Fatal(err)
	}
	req.Op = opAdd
	s.must(req, one, two)
	closeAll([]*os.File{one, two})
	return c
}

func (c client) dial(network string) net.Conn {
	c.t.Helper()
	to := c.udp
	if network == "tcp" {
		to = c.tcp
	}
	conn, err := (&net.Dialer{}).DialContext(c.t.Context(), network, to)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(roottest.Patience())); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// says is the answer on a connection.
func (c client) says(conn net.Conn) string {
	c.t.Helper()
	buf := make([]byte, 1<<16)
	var n int
	var err error
	if conn.LocalAddr().Network() == "tcp" {
		if buf, err = readStream(conn, len(buf)); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return "the end"
		}
		n = len(buf)
	} else {
		n, err = conn.Read(buf)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return said(c.t, buf[:n])
}

// ask sends a question, and returns a function that waits for the answer.
func (c client) ask(network string, q []byte) (answer func() string) {
	c.t.Helper()
	conn := c.dial(network)
	if network == "tcp" {
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	}
	if _, err := conn.Write(q); err != nil {
		c.t.Fatal(err)
	}
	return func() string { c.t.Helper(); return c.says(conn) }
}

func (c client) want(what, want string, q []byte) {
	c.t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		if got := c.ask(network, q)(); got != want {
			c.t.Errorf("%s, over %s: %q, want %q", what, network, got, want)
		}
	}
}

// alone is a box that knows no names.
func alone(t *testing.T, udp net.PacketConn, patience time.Duration, servers ...netip.AddrPort) *box {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(udp, tcp, asks{upstream: servers}, func(_ []string, q []byte, stream bool) ([]byte, error) { return Answer(nil, q, stream) }, nil)
	b.patience = patience
	t.Cleanup(b.close)
	return b
}

func packets(t *testing.T) net.PacketConn {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // the box closes it
	if err != nil {
		t.Fatal(err)
	}
	return udp
}

// TestForward takes the answer of the first server that gives one, and no other message for it.
func TestForward(t *testing.T) {
	lying := upstream(t, func(q []byte) [][]byte {
		wrong := slices.Clone(q)
		binary.BigEndian.PutUint16(wrong, binary.BigEndian.Uint16(q)+1)
		other := question(t, "other.", dnsmessage.TypeA, false)
		copy(other, q[:2])
		return [][]byte{nil, {1, 2, 3}, q, answered(wrong, 66), answered(other, 67), answered(q, 1)}
	})
	long := upstream(t, func(q []byte) [][]byte {
		return [][]byte{append(answered(q, 1), make([]byte, maxPacket)...)}
	})
	says := func(code dnsmessage.RCode) netip.AddrPort {
		return upstream(t, func(q []byte) [][]byte { return [][]byte{refusal(q, code)} })
	}
	broken, closed, knows := says(dnsmessage.RCodeServerFailure), says(dnsmessage.RCodeRefused), says(dnsmessage.RCodeNameError)
	deaf, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deaf.Close() }()
	silent := netip.MustParseAddrPort(deaf.LocalAddr().String())
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	q := question(t, "example.org.", dnsmessage.TypeA, false)
	for _, c := range []struct {
		what     string
		patience time.Duration
		servers  []netip.AddrPort
		want     string
	}{
		{"of one that says more", time.Hour, []netip.AddrPort{lying}, "Success 192.0.2.1"},
		{"after one that is not there", time.Hour, []netip.AddrPort{nobody, lying}, "Success 192.0.2.1"},
		{"after one that is silent", 50 * time.Millisecond, []netip.AddrPort{silent, lying}, "Success 192.0.2.1"},
		{"of those that are silent", time.Millisecond, []netip.AddrPort{silent, silent}, "ServerFailure "},
		{"after one that cannot say", time.Hour, []netip.AddrPort{broken, lying}, "Success 192.0.2.1"},
		{"after one that is not for us", time.Hour, []netip.AddrPort{closed, broken, lying}, "Success 192.0.2.1"},
		{"of one that is not for us, and one that is not there", time.Hour, []netip.AddrPort{closed, nobody}, "Refused "},
		{"that there is no such name", time.Hour, []netip.AddrPort{knows, lying}, "NameError "},
		{"of nobody", time.Hour, []netip.AddrPort{nobody}, "ServerFailure "},
		{"without servers", time.Hour, nil, "ServerFailure "},
		{"that is too long", time.Hour, []netip.AddrPort{long}, "Success cut"},
	} {
		b := alone(t, packets(t), c.patience)
		if got := said(t, b.forward("udp", c.servers, q)); got != c.want {
			t.Errorf("the answer %s is %q, want %q", c.what, got, c.want)
		}
	}
}

// TestADeadServer: while it has a sandbox's questions, the next ones fail at once, names of networks are
// answered, and other sandboxes are.
func TestADeadServer(t *testing.T) {
	got := make(chan struct{}, 2*maxForwarded)
	dead := upstream(t, func([]byte) [][]byte { got <- struct{}{}; return nil })
	good := upstream(t, func(q []byte) [][]byte { return [][]byte{answered(q, 1)} })
	udp := packets(t)
	b := alone(t, udp, time.Hour, dead)
	z := testZone()
	b.answer = func(_ []string, q []byte, stream bool) ([]byte, error) { return Answer([]Zone{z}, q, stream) }
	b.serve()
	c := client{t: t, udp: udp.LocalAddr().String()}
	unknown := question(t, "example.org.", dnsmessage.TypeA, false)
	for range maxForwarded {
		c.ask("udp", unknown)
		<-got
	}
	if said := c.ask("udp", unknown)(); said != "ServerFailure " {
		t.Errorf("one more: %q", said)
	}
	if said := c.ask("udp", question(t, "db.", dnsmessage.TypeA, false))(); said != "Success 10.1.0.3" {
		t.Errorf("a name that is known: %q", said)
	}
	s := newServer(t)
	other := s.sandbox(request{Sandbox: "b", Upstream: []netip.AddrPort{good}})
	if said := other.ask("udp", unknown)(); said != "Success 192.0.2.1" {
		t.Errorf("another sandbox: %q", said)
	}
	if len(got) > 0 {
		t.Error("the dead server was asked more than its share")
	}
}

// TestAServerThatAsksUs: a loop ends, because each turn is one question that waits.
func TestAServerThatAsksUs(t *testing.T) {
	udp := packets(t)
	b := alone(t, udp, time.Hour, netip.MustParseAddrPort(udp.LocalAddr().String()))
	b.serve()
	c := client{t: t, udp: udp.LocalAddr().String()}
	for range 3 {
		if said := c.ask("udp", question(t, "example.org.", dnsmessage.TypeA, false))(); said != "ServerFailure " {
			t.Errorf("%q", said)
		}
	}
}

// TestBadQuestions over a sandbox's sockets.
func TestBadQuestions(t *testing.T) {
	s := newServer(t)
	z := testZone()
	z.Owners[netip.MustParseAddr("10.1.0.9")] = "a..b"
	s.must(request{Op: opZone, Network: "a", Zone: &z})
	c := s.sandbox(request{Sandbox: "a", Networks: []string{"a"}})
	good := question(t, "db.", dnsmessage.TypeA, false)
	if got := c.ask("udp", append(slices.Clone(good), make([]byte, maxUDP)...))(); got != "FormatError " {
		t.Errorf("a packet that is too long: %q", got)
	}
	if got := c.ask("tcp", append(slices.Clone(good), make([]byte, maxUDP)...))(); got != "the end" {
		t.Errorf("a message that is too long: %q", got)
	}
	c.want("a long message", "Success 10.1.0.3", append(slices.Clone(good), make([]byte, maxUDP-len(good))...))
	c.want("a name of 254 bytes", "ServerFailure ", question(t, strings.Repeat(strings.Repeat("x", 62)+".", 4)+"x.", dnsmessage.TypeA, true))
	c.want("NUL", "ServerFailure ", question(t, "d\x00b.", dnsmessage.TypeA, true))
	c.want("an address whose name is none", "ServerFailure ", question(t, "9.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, true))
	c.want("two questions", "FormatError ", func() []byte {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}}
		for range 2 {
			m.Questions = append(m.Questions, dnsmessage.Question{Name: dnsmessage.MustNewName("db."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}())
	// A packet without a question has no answer; the next one has.
	udp := c.dial("udp")
	for _, b := range [][]byte{{}, {1}, answered(good, 1), good} {
		if _, err := udp.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.says(udp); got != "Success 10.1.0.3" {
		t.Errorf("after nonsense: %q", got)
	}
}

// TestIdleConnections: a sandbox has its share of them and no more, and answers over UDP meanwhile.
func TestIdleConnections(t *testing.T) {
	s := newServer(t)
	z := testZone()
	s.must(request{Op: opZone, Network: "a", Zone: &z})
	c, other := s.sandbox(request{Sandbox: "a", Networks: []string{"a"}}), s.sandbox(request{Sandbox: "b", Networks: []string{"a"}})
	q := question(t, "db.", dnsmessage.TypeA, false)
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	var idle []net.Conn
	for range maxStreams {
		conn := c.dial("tcp")
		if _, err := conn.Write(framed); err != nil {
			t.Fatal(err)
		}
		if got := c.says(conn); got != "Success 10.1.0.3" {
			t.Fatalf("the answer is %q", got)
		}
		idle = append(idle, conn)
	}
	if n, err := c.dial("tcp").Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("one more is not closed: %d, %v", n, err)
	}
	if got := c.ask("udp", q)(); got != "Success 10.1.0.3" {
		t.Errorf("over UDP: %q", got)
	}
	other.want("another sandbox", "Success 10.1.0.3", q)
	_ = idle[0].Close()
	roottest.Eventually(t, "there is room for another", func() bool {
		conn := c.dial("tcp")
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(framed)
		_, err := readStream(conn, maxUDP)
		return err == nil
	})
}

// TestNamesOfOthers: a sandbox has answers about the networks that it is on, at once when that
// changes, and about no other.
func TestNamesOfOthers(t *testing.T) {
	s := newServer(t)
	zone := func(addr string) *Zone {
		a := netip.MustParseAddr(addr)
		return &Zone{Names: map[string][]netip.Addr{"db": {a}}, Owners: map[netip.Addr]string{a: "db"}}
	}
	s.must(request{Op: opZone, Network: "a", Zone: zone("10.1.0.1")})
	s.must(request{Op: opZone, Network: "b", Zone: zone("10.2.0.1")})
	c := s.sandbox(request{Sandbox: "1", Networks: []string{"a"}})
	db, of := question(t, "db.", dnsmessage.TypeA, false), question(t, "1.0.2.10.in-addr.arpa.", dnsmessage.TypePTR, false)
	c.want("on a", "Success 10.1.0.1", db)
	c.want("on a, an address of b", "ServerFailure ", of)
	s.must(request{Op: opSet, Sandbox: "1", Networks: []string{"b"}})
	c.want("on b", "Success 10.2.0.1", db)
	c.want("on b, its address", "Success db.", of)
	s.must(request{Op: opSet, Sandbox: "1", Networks: []string{"a", "b"}})
	c.want("on both: the first one's", "Success 10.1.0.1", db)
	s.must(request{Op: opSet, Sandbox: "1", Networks: []string{"b", "a"}})
	c.want("on both, the other way round", "Success 10.2.0.1", db)
	s.must(request{Op: opZone, Network: "b"})
	c.want("without b", "Success 10.1.0.1", db)
	s.must(request{Op: opSet, Sandbox: "1"})
	c.want("on none", "ServerFailure ", db)
}

// TestPatches: a patch changes a zone to the new one.
func TestPatches(t *testing.T) {
	s := newServer(t)
	c := s.sandbox(request{Sandbox: "1", Networks: []string{"a"}})
	if err := s.do(request{Op: opPatch, Network: "a", Patch: &patch{}}); err == nil {
		t.Error("a network that nobody knows was changed")
	}
	was := Zone{}
	s.must(request{Op: opZone, Network: "a", Zone: &was})
	one, two := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	for i, z := range []Zone{
		{Names: map[string][]netip.Addr{"a": {one}}, Owners: map[netip.Addr]string{one: "a"}},
		{Names: map[string][]netip.Addr{"a": {two, one}, "b": {}}, Owners: map[netip.Addr]string{one: "a", two: "b"}},
		{Names: map[string][]netip.Addr{"b": {two}}, Owners: map[netip.Addr]string{two: "a"}},
		testZone(),
		{},
	} {
		s.must(request{Op: opPatch, Network: "a", Patch: z.since(was)})
		s.p.mu.RLock()
		got := s.p.zones["a"].clone()
		s.p.mu.RUnlock()
		if !got.Equal(z) {
			t.Errorf("%d: it is %v, want %v", i, got, z)
		}
		was = z
	}
	c.want("at last", "ServerFailure ", question(t, "a.", dnsmessage.TypeA, false))
}

// large is a zone of n endpoints, as many names each as a task has.
func large(n int) Zone {
	z := Zone{Names: map[string][]netip.Addr{}, Owners: map[netip.Addr]string{}}
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		service := fmt.Sprintf("service-%d", i/10)
		task := fmt.Sprintf("%s.%d.mn7aq3y0ma8n9zw8epq5x%04d", service, i%10, i)
		for _, net := range []string{"", ".network"} {
			for _, name := range []string{task, fmt.Sprintf("%012x", i), fmt.Sprintf("host-%d", i)} {
				z.Names[name+net] = []netip.Addr{a}
			}
			z.Names["tasks."+service+net] = append(z.Names["tasks."+service+net], a)
			z.Names[service+net] = []netip.Addr{netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})}
		}
		z.Owners[a] = task + ".network"
	}
	return z
}

// TestAChangeOfManyIsShort: one endpoint that moves is alone in the patch.
func TestAChangeOfManyIsShort(t *testing.T) {
	old, z := large(2000), large(2000)
	z.Names["host-7"] = []netip.Addr{netip.MustParseAddr("10.1.255.255")}
	p := z.since(old)
	if len(p.Names) != 1 || len(p.Drop)+len(p.Owners)+len(p.Disown) != 0 {
		t.Errorf("%+v", p)
	}
	if kept, left := z.bounded(); left != 0 || !kept.Equal(z) {
		t.Errorf("%d are left out", left)
	}
}

// TestBounded: other nodes' names of a network have bounds, and the same ones are left out each
// time.
func TestBounded(t *testing.T) {
	a := netip.MustParseAddr("10.1.0.1")
	z := Zone{Names: map[string][]netip.Addr{
		"": {a}, ".": {a}, "a..b": {a}, ".a": {a}, "a.": {a}, strings.Repeat("x", 64): {a}, strings.Repeat("x.", 127): {a}, strings.Repeat("x.", 126) + "xx": {a},
		"a": {a}, "d\x00b": {a}, "a.b": {a}, strings.Repeat("x", 63): {a}, strings.Repeat("x.", 126) + "x": {a}, "all": make([]netip.Addr, maxAddrs+1),
	}, Owners: map[netip.Addr]string{a: strings.Repeat("n", 300)}}
	kept, left := z.bounded()
	if len(kept.Names) != 6 || len(kept.Owners) != 0 || left != 8+1+1 || len(kept.Names["all"]) != maxAddrs || len(z.Names) != 14 || len(z.Owners) != 1 {
		t.Errorf("%d names, %d owners, %d are left out", len(kept.Names), len(kept.Owners), left)
	}
	z = Zone{Names: map[string][]netip.Addr{}, Owners: map[netip.Addr]string{}}
	for i := range maxNames + 10 {
		z.Names[fmt.Sprintf("alias-%06d", i)] = []netip.Addr{a}
		z.Owners[netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})] = "a"
	}
	kept, left = z.bounded()
	if again, _ := z.bounded(); left != 20 || len(kept.Names) != maxNames || len(kept.Owners) != maxNames || !again.Equal(kept) || kept.Names["alias-000000"] == nil {
		t.Errorf("%d names, %d owners, %d are left out", len(kept.Names), len(kept.Owners), left)
	}
}

// TestAZoneFitsIntoAMessage, also one that a member of the network's gossip has made as large as it can,
// and the change from another such one.
func TestAZoneFitsIntoAMessage(t *testing.T) {
	addrs := make([]netip.Addr, maxAddrs)
	for i := range addrs {
		addrs[i] = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
	}
	flood := func(first string, names, addrsOf int) Zone {
		z := Zone{Names: map[string][]netip.Addr{}, Owners: map[netip.Addr]string{}}
		long := strings.Repeat(strings.Repeat("<", 62)+".", 3) + "x"
		for i := range names {
			name := fmt.Sprintf("%s-%05d.%s", first, i, long)
			z.Names[name] = addrs[:addrsOf]
			z.Owners[netip.AddrFrom16([16]byte{0xfd, 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})] = name
		}
		return z
	}
	for what, z := range map[string]Zone{"many names": flood("a", maxNames, 1), "many addresses": flood("a", 3000, maxAddrs)} {
		kept, left := z.bounded()
		if again, _ := z.bounded(); left == 0 || len(kept.Names) == 0 || !again.Equal(kept) || len(z.Names)+len(z.Owners) != len(kept.Names)+len(kept.Owners)+left {
			t.Errorf("%s: %d names and %d owners are kept, %d left out", what, len(kept.Names), len(kept.Owners), left)
		}
		other, _ := flood("b", len(z.Names), 1).bounded()
		for _, req := range []request{{Op: opZone, Zone: &kept}, {Op: opPatch, Patch: other.since(kept)}} {
			if body, err := json.Marshal(req); err != nil || len(body) > maxMessage {
				t.Errorf("%s: a message of %d bytes to %s, %v", what, len(body), req.Op, err)
			}
		}
	}
}

// TestQuestionsWaitForZones that come soon.
func TestQuestionsWaitForZones(t *testing.T) {
	s := newServer(t)
	a := netip.MustParseAddr("10.1.0.1")
	z := &Zone{Names: map[string][]netip.Addr{"db": {a}}}
	s.must(request{Op: opZone, Network: "a", Zone: z})
	c := s.sandbox(request{Sandbox: core.ID("1"), Networks: []string{"a", "b"}, Wait: true})
	udp, tcp := c.ask("udp", question(t, "web.", dnsmessage.TypeA, false)), c.ask("tcp", question(t, "web.", dnsmessage.TypeA, false))
	s.must(request{Op: opZone, Network: "b", Zone: &Zone{Names: map[string][]netip.Addr{"web": {a}}}})
	for _, answer := range []func() string{udp, tcp} {
		if got := answer(); got != "Success 10.1.0.1" {
			t.Errorf("the answer is %q", got)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDropped)
	s.p.awaitZones(ctx, []string{"nobody tells"}) // it ends with the sandbox
}

func BenchmarkZone(b *testing.B) {
	old, z := large(2000), large(2000)
	z.Names["host-7"] = []netip.Addr{netip.MustParseAddr("10.1.255.255")}
	b.Run("Difference", func(b *testing.B) {
		for b.Loop() {
			kept, _ := z.bounded()
			if kept.Equal(old) || len(kept.since(old).Names) != 1 {
				b.Fatal("no difference")
			}
		}
	})
	zones := []Zone{old}
	q := question(b, "tasks.service-7.", dnsmessage.TypeA, true)
	b.Run("Answer", func(b *testing.B) {
		for b.Loop() {
			if answer, err := Answer(zones, q, false); err != nil || answer == nil {
				b.Fatal(err)
			}
		}
	})
}
