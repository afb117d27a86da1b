package egress

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestVerifiedPrograms runs curl and git under lists with verify=sni, and has curl ask for other names at the address of a listed
// one. Each refusal has a control without verify=sni.
func TestVerifiedPrograms(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t)
		networktest.Run(t, "ip addr add "+apiAddr+" dev world")
		for _, h := range programHosts {
			w.Set(h, apiAddr)
		}
		dir := t.TempDir()
		serveHTTP(t, dir)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image := n.Busybox(t)
		mounts := []string{"-v", dir + ":/t:ro"}
		for _, path := range []string{"/usr", "/lib", "/lib64", "/etc/alternatives"} {
			if _, err := os.Stat(path); err == nil {
				mounts = append(mounts, "-v", path+":"+path+":ro")
			}
		}
		run := func(script string, list ...string) (string, error) {
			args := append([]string{"run", "--rm", "-e", "PATH=/usr/bin:/bin"}, mounts...)
			for _, e := range list {
				args = append(args, "--egress", e)
			}
			return n.CLI(append(args, image, "/bin/sh", "-c", "(export CURL_CA_BUNDLE=/t/ca.pem GIT_SSL_CAINFO=/t/ca.pem HOME=/tmp; "+script+") 2>&1")...)
		}
		const front = "curl -sS --resolve git.example:443:" + apiAddr + " --resolve git.example:80:" + apiAddr + " "
		ran := 0
		for _, c := range []struct {
			name, program, script string
			list                  []string
			want                  bool
		}{
			{"curl over TLS", "curl", "curl -sS https://api.example.com/", []string{"api.example.com:443"}, true},
			{"curl over HTTP", "curl", "curl -sS http://api.example.com/", []string{"api.example.com:80"}, true},
			{"two requests over one connection", "curl", "curl -sS http://api.example.com/ http://api.example.com/", []string{"api.example.com:80"}, true},
			{"a body", "curl", "curl -sS -H 'Transfer-Encoding: chunked' --data-binary @/t/ca.pem http://api.example.com/", []string{"api.example.com:80"}, true},
			{"git", "git", "git ls-remote https://git.example/repo.git", []string{"git.example:443"}, true},
			{"another name by TLS", "curl", "curl -sS https://api.example.com/ >/dev/null; " + front + "https://git.example/repo.git/HEAD", []string{"api.example.com"}, false},
			{"another host by HTTP", "curl", "curl -sS http://api.example.com/ >/dev/null; " + front + "http://git.example/repo.git/HEAD", []string{"api.example.com"}, false},
			{"a Host header", "curl", "curl -sS -H 'Host: git.example' http://api.example.com/repo.git/HEAD", []string{"api.example.com"}, false},
			{"the listed name as a proxy", "curl", "curl -sS -x http://api.example.com:80 http://git.example/repo.git/HEAD", []string{"api.example.com"}, false},
		} {
			if !installed(c.program) {
				t.Logf("%s is not installed", c.program)
				continue
			}
			ran++
			out, err := run(c.script, append(c.list, "verify=sni")...)
			if (err == nil && strings.Contains(out, "hello")) != c.want {
				t.Errorf("%s: %v %s", c.name, err, out)
			}
			t.Logf("%s: %s", c.name, strings.TrimSpace(out))
			if out, err := run(c.script, c.list...); err != nil || !strings.Contains(out, "hello") {
				t.Errorf("%s without verify=sni: %v %s", c.name, err, out)
			}
		}
		if ran == 0 {
			t.Skip("neither curl nor git is installed")
		}
		n.Check()
	})
}

// verifiedTraffic makes requests of a listed host, and of another one at its address.
const verifiedTraffic = `
nc -w 9 api.example.com 80 </dev/null
ok=0 failed=0 leaked=0
ask() { printf "GET / HTTP/1.1\r\nHost: $1\r\nConnection: close\r\n\r\n" | nc -w 20 93.184.215.1 80 2>/dev/null | grep -q answer; }
while [ ! -e /t/stop ]; do
  if nslookup api.example.com >/dev/null 2>&1 && ask api.example.com; then ok=$((ok+1)); else failed=$((failed+1)); fi
  if ask attacker.example; then leaked=$((leaked+1)); fi
  echo $ok $failed $leaked > /t/counts.new; mv /t/counts.new /t/counts
done
echo done > /t/done
`

// TestVerifiedConnectionsUnderKills kills the agent, the name server, the keeper and both of the first ones under requests. Requests
// succeed again after each one, and no other host is reached. It also changes the list while requests are made.
func TestVerifiedConnectionsUnderKills(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t)
		networktest.Run(t, "ip addr add "+apiAddr+" dev world")
		w.Set("api.example.com", apiAddr)
		l, err := net.Listen("tcp", apiAddr+":80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		var mu sync.Mutex
		hosts := map[string]int{}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = c.Close() }()
					req, err := http.ReadRequest(bufio.NewReader(c))
					if err != nil {
						return
					}
					mu.Lock()
					hosts[req.Host]++
					mu.Unlock()
					_, _ = fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nanswer\n")
				}()
			}
		}()
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image, dir := n.Busybox(t), t.TempDir()
		must(t, n, "run", "-d", "--name", "busy", "-v", dir+":/t", "--egress", "api.example.com:80", "--egress", "verify=sni", image, "/bin/sh", "-c", verifiedTraffic)
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
			nodetest.Eventually(t, "requests succeed "+when, func() bool { ok, _, _ := counts(); return ok >= before+2 })
		}
		more("before the first kill")
		kill := func() {
			for _, pid := range nodetest.Processes("longshore-names", "") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		kills := 0
		for range rounds() {
			for name, round := range map[string]func(){
				"the death of the agent":                        func() { n.Kill(); n.Up() },
				"the death of the name server":                  kill,
				"the death of the keeper":                       func() { n.KillKeeper(); n.KeeperBack() },
				"the death of the agent and of the name server": func() { n.Kill(); kill(); n.Up() },
				"a change of the list": func() {
					must(t, n, "egress", "set", "busy", "api.example.com:80", "192.0.2."+strconv.Itoa(kills+1), "verify=sni")
				},
			} {
				round()
				more("after " + name)
				kills++
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the traffic ends", func() bool { _, err := os.Stat(filepath.Join(dir, "done")); return err == nil })
		ok, failed, leaked := counts()
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d kills and changes: %d requests, %d failed; the server has seen %v", kills, ok, failed, hosts)
		if leaked > 0 || hosts["attacker.example"] > 0 || hosts["api.example.com"] == 0 {
			t.Errorf("%d requests of another host were answered; the server has seen %v", leaked, hosts)
		}
		n.Check()
	})
}
