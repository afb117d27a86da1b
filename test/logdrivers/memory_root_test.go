package logdrivers

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// peak returns the highest resident size of a process since the last call, in KiB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// count counts the lines of all connections to l.
func count(l net.Listener, lines *atomic.Int64) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			in := bufio.NewScanner(conn)
			for in.Scan() {
				lines.Add(1)
			}
		}()
	}
}

// TestAGibibyteOfOutput: all lines of 1 GiB arrive, and need no more memory of the agent than those of 128 MiB. A service that reads nothing holds up neither
// the container nor the agent.
func TestAGibibyteOfOutput(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, image := start(t)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		dead, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dead.Close() }()
		var lines atomic.Int64
		go count(l, &lines)
		const most, more = 64 << 10, 16 << 10 // KiB
		before := peak(t, n.Pid())
		write := func(name, address string, mib int) {
			cli(t, n, "run", "-d", "--name", name, "--log-driver", "syslog", "--log-opt", "syslog-address=tcp://"+address, "--log-opt", "cache-max-size=256m", "--log-opt", "cache-max-file=8",
				image, "sh", "-c", fmt.Sprintf("yes %s | head -c %d", strings.Repeat("x", 1023), mib<<20))
			cli(t, n, "wait", name)
		}
		write("some", l.Addr().String(), 128)
		roottest.Eventually(t, "all lines arrive", func() bool { return lines.Load() == 128<<10 })
		some := peak(t, n.Pid())
		write("live", l.Addr().String(), 1024)
		roottest.Eventually(t, "all lines arrive", func() bool { return lines.Load() == 1152<<10 })
		after := peak(t, n.Pid())
		write("dead", dead.Addr().String(), 256)
		stuck := peak(t, n.Pid())
		t.Logf("the agent's peak: %d KiB, with 128 MiB of lines %d KiB, with 1 GiB %d KiB, with a service that reads nothing %d KiB", before, some, after, stuck)
		if after > before+most || stuck > before+most || after > some+more {
			t.Error("the agent's memory grows with the output")
		}
		losses(t, n, 0)
		cli(t, n, "rm", "some", "live", "dead")
		n.Check()
	})
}

// losses checks how many lines the events say were lost.
func losses(t *testing.T, n *nodetest.Node, want int) {
	t.Helper()
	if out := cli(t, n, "events", "--since", "0", "--no-follow"); strings.Count(out, "were lost") != want {
		t.Errorf("%s", out)
	}
}
