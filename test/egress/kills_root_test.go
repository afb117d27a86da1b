package egress

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// traffic is a script in a directory of the test: one connection that stays, new ones to a listed name, and attempts to reach a
// server that is not in the list.
const traffic = `
(i=0; while [ ! -e /t/stop ]; do i=$((i+1)); echo $i; usleep 20000; done; echo $i > /t/sent; sleep 1) | nc 93.184.215.1 7777 > /t/echo &
ok=0 failed=0 leaked=0
while [ ! -e /t/stop ]; do
  if nc -w 20 api.example.com 80 >/dev/null 2>>/t/errors; then ok=$((ok+1)); else failed=$((failed+1)); fi
  if nc -w 20 93.184.215.2 80 >/dev/null 2>&1; then leaked=$((leaked+1)); fi
  if nc -w 20 other.example.com 80 >/dev/null 2>&1; then leaked=$((leaked+1)); fi
  echo $ok $failed $leaked > /t/counts.new; mv /t/counts.new /t/counts
done
wait
echo done > /t/done
`

// rounds is the number of kills of each process.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("LONGSHORE_EGRESS_KILLS")); err == nil {
		return n
	}
	return 2
}

// TestKilledUnderTraffic kills the agent, the name server, the keeper and both of the first ones. No permitted connection is lost,
// and no other one is opened.
func TestKilledUnderTraffic(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		l, err := net.Listen("tcp", "93.184.215.1:7777")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image, dir := n.Busybox(t), t.TempDir()
		must(t, n, "run", "-d", "--name", "busy", "-v", dir+":/t", "--egress", "api.example.com", image, "/bin/sh", "-c", "nc -w 9 api.example.com 80; "+traffic)
		counts := func() (ok, failed, leaked int) {
			b, _ := os.ReadFile(filepath.Join(dir, "counts"))
			f := append(strings.Fields(string(b)), "0", "0", "0")
			ok, _ = strconv.Atoi(f[0])
			failed, _ = strconv.Atoi(f[1])
			leaked, _ = strconv.Atoi(f[2])
			return ok, failed, leaked
		}
		more := func(when string) {
			t.Helper()
			before, _, _ := counts()
			nodetest.Eventually(t, "connections are made "+when, func() bool { ok, _, _ := counts(); return ok >= before+2 })
		}
		more("before the first kill")
		kill := func(t *testing.T) {
			for _, pid := range nodetest.Processes("longshore-names", "") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		var done atomic.Int32
		for range rounds() {
			for name, round := range map[string]func(){
				"agent":                 func() { n.Kill(); n.Up() },
				"name server":           func() { kill(t) },
				"keeper":                func() { n.KillKeeper(); n.KeeperBack() },
				"agent and name server": func() { n.Kill(); kill(t); n.Up() },
			} {
				round()
				more("after the death of " + name)
				done.Add(1)
			}
		}
		// Without agent and name server open addresses stay open, and nothing new opens.
		must(t, n, "run", "-d", "--name", "still", "--egress", "api.example.com", "--egress", "other.example.com", "-v", dir+":/t", image, "/bin/sh", "-c",
			"nc -w 9 api.example.com 80 && echo ready > /t/ready; while [ ! -e /t/dead ]; do usleep 20000; done; nc -w 9 93.184.215.1 80 >/dev/null && echo old-open > /t/old; nc -w 1 93.184.215.2 80 >/dev/null 2>&1 && echo new-open > /t/new; echo over > /t/over; sleep 1000")
		there := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
		nodetest.Eventually(t, "the address of api.example.com is open", func() bool { return there("ready") })
		n.Kill()
		kill(t)
		if err := os.WriteFile(filepath.Join(dir, "dead"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "both connections were tried without agent and name server", func() bool { return there("over") })
		if !there("old") || there("new") {
			t.Errorf("without agent and name server an open address is open: %t, and one that was never asked for: %t", there("old"), there("new"))
		}
		n.Up()
		more("at the end")
		if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the traffic ends", func() bool { return there("done") })
		ok, failed, leaked := counts()
		sent, _ := os.ReadFile(filepath.Join(dir, "sent"))
		echo, _ := os.ReadFile(filepath.Join(dir, "echo"))
		lines := strings.Fields(string(echo))
		t.Logf("%d kills: %d connections, %d failed, %d leaked; %d lines over one connection", done.Load(), ok, failed, leaked, len(lines))
		if failed > 0 || leaked > 0 || ok == 0 {
			errors, _ := os.ReadFile(filepath.Join(dir, "errors"))
			t.Errorf("%d connections succeeded, %d failed, %d reached other servers: %s", ok, failed, leaked, errors)
		}
		if len(lines) == 0 || lines[len(lines)-1] != strings.TrimSpace(string(sent)) || strconv.Itoa(len(lines)) != lines[len(lines)-1] {
			t.Errorf("%d of %s lines came back over the connection", len(lines), sent)
		}
		n.Check()
	})
}
