package names

import (
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/roottest"
)

// TestASandboxGetsItsNamesAfterAShortage: sockets that the name server could not receive are sent
// again, over the same connection, until it has them.
func TestASandboxGetsItsNamesAfterAShortage(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/socket", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	p := newProcess()
	go p.accept(l)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	one, err := udp.File()
	if err != nil {
		t.Fatal(err)
	}
	two, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = udp.Close(), tcp.Close()
	asks := client{t, udp.LocalAddr().String(), tcp.Addr().String()}

	c := New(Options{Dir: dir, Health: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	t.Cleanup(func() {
		_ = l.Close()
		c.Close()
		p.drop("box")
	})
	c.zones["a"] = testZone()
	c.mu.Lock()
	if err := c.dialLocked(phaseGreeting); err != nil {
		t.Fatal(err)
	}
	if err := c.updateLocked(false); err != nil {
		t.Fatal(err)
	}
	conn := c.state.conn
	c.boxes["box"], c.kept["box"] = Box{Sandbox: "box", Networks: []string{"a"}}, []*os.File{one, two}
	restore := roottest.LimitFiles(t, os.Getpid(), 3)
	err = c.updateLocked(false)
	behind := c.state.phase == phaseBehind
	c.mu.Unlock()
	restore()
	if err != nil || !behind {
		t.Errorf("while the name server can receive no descriptors: %v, behind %t", err, behind)
	}
	roottest.Eventually(t, "the name server has the sandbox", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.boxes["box"] != nil
	})
	asks.want("afterwards", "Success 10.1.0.3", question(t, "db.", dnsmessage.TypeA, false))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.conn != conn {
		t.Error("the connection was given up")
	}
}

// TestANameServerAcceptsAfterAShortage: an agent that cannot be accepted for want of descriptors
// waits, and the name server continues.
func TestANameServerAcceptsAfterAShortage(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.Addr().String(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	restore := roottest.LimitFiles(t, os.Getpid(), 3)
	tried := make(chan bool)
	p := newProcess()
	go p.accept(&tries{l, tried})
	<-tried
	restore()
	select {
	case <-p.ended:
		t.Fatal("the name server ended")
	case <-tried:
	}
	if err := send(conn, request{Op: opHello}, nil); err != nil {
		t.Fatal(err)
	}
	var resp response
	if _, err := receive(conn, &resp); err != nil || resp.Pid != os.Getpid() {
		t.Errorf("afterwards it says %+v, %v", resp, err)
	}
}

// tries tells of the first two attempts to accept.
type tries struct {
	net.Listener
	done chan bool
}

func (l *tries) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if l.done != nil {
		l.done <- true
		if err == nil {
			l.done = nil
		}
	}
	return conn, err
}

// TestAPhaseHasItsData: a connection is kept by the phases that are connected and closed by the others, and a timer
// runs in those that retry alone.
func TestAPhaseHasItsData(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/socket", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c := New(Options{Dir: dir, Health: time.Hour, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	defer c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	connected := map[phase]bool{phaseGreeting: true, phaseStarting: true, phaseServing: true, phaseBehind: true}
	retries := map[phase]bool{phaseLost: true, phaseBehind: true}
	for p := phaseIdle; p < phaseClosed; p++ {
		if err := c.dialLocked(phaseGreeting); err != nil {
			t.Fatal(err)
		}
		conn := c.state.conn
		s := c.enterLocked(p)
		if c.state != s || s.phase != p || (s.conn == conn) != connected[p] || (s.retry != nil) != retries[p] {
			t.Errorf("phase %d: %+v", p, *s)
		}
		c.disconnectLocked()
		if _, err := conn.Write([]byte{0}); err == nil || c.state.phase != phaseIdle {
			t.Errorf("phase %d: after it the connection is open, in phase %d", p, c.state.phase)
		}
		if s.retry != nil && s.retry.Stop() {
			t.Errorf("phase %d: its timer runs on", p)
		}
	}
	c.boxes["box"] = Box{}
	if c.disconnectLocked(); c.state.phase != phaseLost {
		t.Errorf("with a sandbox and no process: phase %d", c.state.phase)
	}
}
