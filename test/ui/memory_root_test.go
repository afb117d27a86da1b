package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// maxPerPage bounds the memory of the agent that its first open page needs, in KiB. maxIdle bounds that of the section [ui] alone: the
// measurement is no more exact.
const (
	maxPerPage = 3 << 10
	maxIdle    = 1 << 10
)

var anon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// memory returns the anonymous memory of a node's agent in KiB, after a collection: the smallest of a few measurements.
func memory(t *testing.T, n *nodetest.Node) int {
	t.Helper()
	client := overUnix(filepath.Join(n.State, "control-http.sock"))
	defer client.CloseIdleConnections()
	least := 0
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for range 16 {
		<-tick.C
		if resp, err := client.Get("http://agent/debug/pprof/heap?gc=1"); err == nil { //nolint:noctx // it ends with the test
			_ = resp.Body.Close()
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		m := anon.FindSubmatch(status)
		if m == nil {
			t.Fatalf("no RssAnon in %s", status)
		}
		if kb, _ := strconv.Atoi(string(m[1])); least == 0 || kb < least {
			least = kb
		}
	}
	return least
}

func overUnix(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// look opens the feed of a page, reads some rounds of stats, and keeps it open until the test ends.
func look(t *testing.T, socket, token string) {
	t.Helper()
	client := overUnix(socket)
	t.Cleanup(client.CloseIdleConnections)
	do := func(method, path, body, key string, cookies []*http.Cookie) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Longshore-Key", key)
		for _, c := range cookies {
			req.AddCookie(c)
		}
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", path, resp, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	in := do(http.MethodPost, "/api/login", token, "login", nil)
	var answer struct{ Key string }
	if err := json.NewDecoder(in.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	feed := bufio.NewReaderSize(do(http.MethodGet, "/api/feed", "", answer.Key, in.Cookies()).Body, 64<<10)
	for rounds := 0; rounds < 3; {
		line, err := feed.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, `"k":"stats"`) {
			rounds++
		}
	}
	go func() {
		for {
			if _, err := feed.ReadString('\n'); err != nil {
				return
			}
		}
	}()
}

// TestTheAgentsMemory compares the agent without the section [ui], with it, and with an open page.
func TestTheAgentsMemory(t *testing.T) {
	dir := t.TempDir()
	const token = "a token for this test"
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	var without, idle, open int
	roottest.Run(t, func(t *testing.T) {
		run := func(name, config string, with func(t *testing.T, n *nodetest.Node)) {
			t.Run(name, func(t *testing.T) {
				n := nodetest.Start(t, nodetest.Options{Config: config})
				image := n.Busybox(t)
				cli(t, n, "pull", image)
				for i := range 20 {
					cli(t, n, "run", "-d", "--name", fmt.Sprintf("c%d", i), image, "sleep", "100000")
				}
				with(t, n)
				n.Stop()
			})
		}
		run("without", "", func(t *testing.T, n *nodetest.Node) { without = memory(t, n) })
		socket := filepath.Join(dir, "ui.sock")
		run("with", fmt.Sprintf("[ui]\nlisten = %q\ntoken_file = %q\n", socket, file), func(t *testing.T, n *nodetest.Node) {
			idle = memory(t, n)
			look(t, socket, token)
			open = memory(t, n)
		})
		t.Logf("the agent has %d KiB without [ui], %d KiB with it, and %d KiB with an open page", without, idle, open)
		if idle > without+maxIdle {
			t.Errorf("[ui] costs %d KiB without a page", idle-without)
		}
		if open > idle+maxPerPage {
			t.Errorf("an open page costs %d KiB, at most %d", open-idle, maxPerPage)
		}
	})
}
