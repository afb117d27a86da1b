package logdrivers

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// service is a syslog service on a stream. It notes the numbers in lines that end with "line N".
type service struct {
	mu    sync.Mutex // guards seen, twice, other, conns
	seen  map[int]int
	other []string
	conns []net.Conn
	l     net.Listener
}

func listen(t *testing.T, address string) *service {
	t.Helper()
	s := &service{seen: map[int]int{}}
	s.open(t, address)
	t.Cleanup(s.shut)
	return s
}

func (s *service) open(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.l = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			go s.read(conn)
		}
	}()
}

// shut closes the listener and all connections.
func (s *service) shut() {
	_ = s.l.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

func (s *service) read(conn net.Conn) {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		s.mu.Lock()
		_, text, ok := strings.Cut(in.Text(), ": line ")
		if n, err := strconv.Atoi(text); ok && err == nil {
			s.seen[n]++
		} else {
			s.other = append(s.other, in.Text())
		}
		s.mu.Unlock()
	}
}

// count returns how many different lines have arrived, and how many of them more than once.
func (s *service) count() (lines, again int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.seen {
		again += n - 1
	}
	return len(s.seen), again
}

func cli(t *testing.T, n *nodetest.Node, args ...string) string {
	t.Helper()
	out, err := n.CLI(args...)
	if err != nil {
		t.Fatalf("longshore %s: %s, %v", strings.Join(args, " "), out, err)
	}
	return out
}

func start(t *testing.T) (*nodetest.Node, string) {
	n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"})
	return n, n.Busybox(t)
}

// TestNoLineIsLostWhileTheAgentIsKilled: 20 kills of the agent under load lose no line, and each sends at most one batch twice.
func TestNoLineIsLostWhileTheAgentIsKilled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := listen(t, "127.0.0.1:0")
		n, image := start(t)
		const kills, batch = 20, 256
		cli(t, n, "run", "-d", "--name", "c", "--log-driver", "syslog", "--log-opt", "syslog-address=tcp://"+s.l.Addr().String(), "--log-opt", "tag={{.Name}}",
			image, "sh", "-c", "i=0; while [ ! -e /end ]; do i=$((i+1)); echo line $i; [ $((i%50)) = 0 ] && usleep 1000; done; echo last $i")
		for range kills {
			before, _ := s.count()
			roottest.Eventually(t, "lines arrive", func() bool { now, _ := s.count(); return now > before+100 })
			n.Kill()
			n.Up()
		}
		_, _ = n.CLI("exec", "c", "touch", "/end") // the program's end may kill it
		cli(t, n, "wait", "c")
		cli(t, n, "rm", "c")
		complete(t, s, kills*batch)
	})
}

// complete checks that a service has got all lines to "last N", and at most some of them again.
func complete(t *testing.T, s *service, again int) {
	t.Helper()
	last := 0
	roottest.Eventually(t, "the last line arrives", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.other {
			if _, text, ok := strings.Cut(l, ": last "); ok {
				last, _ = strconv.Atoi(text)
				return true
			}
		}
		return false
	})
	lines, twice := s.count()
	t.Logf("%d lines, %d arrived again", lines, twice)
	if lines != last {
		t.Errorf("%d of %d lines arrived", lines, last)
	}
	if twice > again {
		t.Errorf("%d lines arrived again, more than %d", twice, again)
	}
}

// TestAServiceThatIsDownGetsTheLinesLater: the container does not wait for it, and its own log is complete.
func TestAServiceThatIsDownGetsTheLinesLater(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := listen(t, "127.0.0.1:0")
		address := s.l.Addr().String()
		s.shut()
		n, image := start(t)
		cli(t, n, "run", "-d", "--name", "c", "--log-driver", "syslog", "--log-opt", "syslog-address=tcp://"+address,
			image, "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done; echo last $i")
		cli(t, n, "wait", "c")
		if out := cli(t, n, "logs", "c"); strings.Count(out, "\n") != 20001 {
			t.Errorf("the container's own log has %d lines", strings.Count(out, "\n"))
		}
		if lines, _ := s.count(); lines > 0 {
			t.Errorf("%d lines arrived at a service that is down", lines)
		}
		s.open(t, address)
		complete(t, s, 0)
		cli(t, n, "rm", "c")
		n.Check()
	})
}

// TestARemovalSaysWhatItsServiceDidNotGet: the removal waits for a bounded time, and the event log has the number of lost lines.
func TestARemovalSaysWhatItsServiceDidNotGet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, image := start(t)
		cli(t, n, "run", "-d", "--name", "c", "--log-driver", "syslog", "--log-opt", "syslog-address=unix://"+filepath.Join(t.TempDir(), "none"),
			image, "sh", "-c", "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo line $i; done")
		cli(t, n, "wait", "c")
		cli(t, n, "rm", "c")
		if out := cli(t, n, "events", "--since", "0", "--no-follow"); !strings.Contains(out, "log driver syslog: 1000 lines of container c were lost: the container was removed") {
			t.Errorf("no event of the lost lines: %s", out)
		}
		if left, err := filepath.Glob(filepath.Join(n.Root, "log-drivers", "*")); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
		if _, err := n.CLI("run", "--log-driver", "gelf", image, "true"); err == nil || !strings.Contains(err.Error(), `log driver "gelf" is not supported`) {
			t.Error(err)
		}
		if _, err := n.CLI("run", "--log-driver", "syslog", "--log-opt", "color=red", image, "true"); err == nil || !strings.Contains(err.Error(), "unknown log opt 'color'") {
			t.Error(err)
		}
		n.Check()
	})
}

// TestLinesWithoutAnEndAreJoined: a program that writes a line in pieces sends one message, and a start of the container ends an open
// line.
func TestLinesWithoutAnEndAreJoined(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := listen(t, "127.0.0.1:0")
		n, image := start(t)
		cli(t, n, "run", "-d", "--name", "c", "--log-driver", "syslog", "--log-opt", "syslog-address=tcp://"+s.l.Addr().String(), "--log-opt", "tag={{.ImageID}}",
			image, "sh", "-c", "echo -n first; usleep 50000; echo ' and second'; echo -n open")
		cli(t, n, "wait", "c")
		cli(t, n, "start", "c")
		cli(t, n, "wait", "c")
		cli(t, n, "rm", "c")
		s.mu.Lock()
		defer s.mu.Unlock()
		var texts []string
		for _, l := range s.other {
			head, text, _ := strings.Cut(l, ": ")
			texts = append(texts, text)
			if !regexp.MustCompile(` [0-9a-f]{12}\[\d+\]$`).MatchString(head) {
				t.Errorf("%q has no tag of the image", head)
			}
		}
		if got := fmt.Sprint(texts); got != "[first and second open first and second open]" {
			t.Errorf("%q", texts)
		}
	})
}
