package logdrivers

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// run starts a program that ends with the test.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if b, err := os.ReadFile(out.Name()); err == nil && t.Failed() {
			t.Logf("%s: %s", name, b)
		}
	})
}

// TestJournald: systemd-journald has the lines with docker's fields, a large one too, and journalctl finds them by these.
func TestJournald(t *testing.T) {
	const program = "/lib/systemd/systemd-journald"
	if _, err := os.Stat(program); err != nil {
		t.Skip("this machine has no systemd-journald")
	}
	roottest.Run(t, func(t *testing.T) {
		for _, dir := range []string{"/run/systemd", "/run/log"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
				t.Fatal(err)
			}
		}
		run(t, program)
		roottest.Eventually(t, "journald listens", func() bool { _, err := os.Stat("/run/systemd/journal/socket"); return err == nil })
		n, image := start(t)
		cli(t, n, "run", "-d", "--name", "web", "--label", "team=x", "--log-driver", "journald", "--log-opt", "tag=app/{{.Name}}", "--log-opt", "labels=team",
			image, "sh", "-c", "echo one; usleep 20000; echo two >&2; usleep 20000; head -c 40000 /dev/zero | tr '\\0' x; echo; echo last")
		id := strings.TrimSpace(cli(t, n, "inspect", "--format", "{{.Id}}", "web"))
		cli(t, n, "wait", "web")
		cli(t, n, "rm", "web")
		var entries []map[string]any
		roottest.Eventually(t, "the journal has the last line", func() bool {
			out, err := exec.CommandContext(t.Context(), "journalctl", "-D", "/run/log/journal", "-o", "json", "-a", "CONTAINER_NAME=web").CombinedOutput()
			if err != nil {
				return false
			}
			entries = nil
			for line := range strings.Lines(string(out)) {
				e := map[string]any{}
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				entries = append(entries, e)
			}
			return len(entries) > 0 && entries[len(entries)-1]["MESSAGE"] == "last"
		})
		if len(entries) != 6 {
			t.Fatalf("%d entries: %v", len(entries), entries)
		}
		for i, want := range []struct{ message, priority string }{{"one", "6"}, {"two", "3"}, {strings.Repeat("x", 16<<10), "6"}} {
			e := entries[i]
			if e["MESSAGE"] != want.message || e["PRIORITY"] != want.priority || e["CONTAINER_ID_FULL"] != id || e["CONTAINER_ID"] != id[:12] ||
				e["CONTAINER_TAG"] != "app/web" || e["SYSLOG_IDENTIFIER"] != "app/web" || e["TEAM"] != "x" || !strings.Contains(fmt.Sprint(e["IMAGE_NAME"]), "busybox") {
				t.Errorf("%v", e)
			}
		}
		if e := entries[4]; e["CONTAINER_PARTIAL_MESSAGE"] != "true" || e["CONTAINER_PARTIAL_ORDINAL"] != "3" || e["CONTAINER_PARTIAL_LAST"] != "true" || e["CONTAINER_PARTIAL_ID"] != entries[2]["CONTAINER_PARTIAL_ID"] {
			t.Errorf("%v", e)
		}
	})
}

// TestRsyslog: Debian's rsyslogd reads our messages on UDP, TCP and unix sockets, as RFC 5424 and RFC 3164 have them.
func TestRsyslog(t *testing.T) {
	program, err := exec.LookPath("rsyslogd")
	if err != nil {
		t.Skip("this machine has no rsyslogd")
	}
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		out, conf, socket := filepath.Join(dir, "out"), filepath.Join(dir, "conf"), filepath.Join(dir, "log")
		if err := os.WriteFile(conf, fmt.Appendf(nil, `global(workDirectory=%q)
module(load="imtcp") module(load="imudp") module(load="imuxsock" SysSock.Use="off")
input(type="imtcp" port="5514" address="127.0.0.1")
input(type="imudp" port="5514" address="127.0.0.1")
input(type="imuxsock" Socket=%q ParseTrusted="off" UsePIDFromSystem="off")
template(name="t" type="string" string="%%app-name%%|%%syslogfacility-text%%|%%syslogseverity-text%%|%%msg:::drop-last-lf%%\n")
*.* action(type="omfile" file=%q template="t")
`, dir, socket, out), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, program, "-n", "-i", filepath.Join(dir, "pid"), "-f", conf)
		roottest.Eventually(t, "rsyslogd listens", func() bool {
			conn, err := net.Dial("tcp", "127.0.0.1:5514")
			if err == nil {
				_ = conn.Close()
			}
			_, serr := os.Stat(socket)
			return err == nil && serr == nil
		})
		n, image := start(t)
		var want []string
		for _, tt := range []struct{ name, address, format string }{
			{"tcp5424", "tcp://127.0.0.1:5514", "rfc5424"},
			{"tcp3164", "tcp://127.0.0.1:5514", "rfc3164"},
			{"micro", "tcp://127.0.0.1:5514", "rfc5424micro"},
			{"udp5424", "udp://127.0.0.1:5514", "rfc5424"},
			{"gram", "unixgram://" + socket, ""},
		} {
			cli(t, n, "run", "--rm", "--log-driver", "syslog", "--log-opt", "syslog-address="+tt.address, "--log-opt", "syslog-format="+tt.format, "--log-opt", "tag="+tt.name,
				"--log-opt", "syslog-facility=local2", "-d", "--name", tt.name, image, "sh", "-c", "echo hello; usleep 20000; echo fault >&2")
			space := " "
			if strings.Contains(tt.format, "5424") {
				space = ""
			}
			want = append(want, tt.name+"|local2|info|"+space+"hello", tt.name+"|local2|err|"+space+"fault")
		}
		roottest.Eventually(t, "all lines are in rsyslog's file", func() bool {
			b, err := os.ReadFile(out)
			if err != nil {
				return false
			}
			for _, w := range want {
				if !strings.Contains(string(b), w+"\n") {
					return false
				}
			}
			return true
		})
	})
}

// forward is a server of fluentd's forward protocol. Its decoder of MessagePack is that of another project.
type forward struct {
	mu      sync.Mutex // guards seen, records, tags
	seen    map[int]int
	records []map[string]any
	tags    map[string]bool
	l       net.Listener
}

func (f *forward) serve(t *testing.T) {
	for {
		conn, err := f.l.Accept()
		if err != nil {
			return
		}
		go f.read(t, conn)
	}
}

func (f *forward) read(t *testing.T, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = true
	dec, enc := codec.NewDecoder(conn, h), codec.NewEncoder(conn, h)
	for {
		var message []any
		if err := dec.Decode(&message); err != nil {
			return
		}
		if len(message) != 3 {
			t.Errorf("%v", message)
			return
		}
		f.mu.Lock()
		f.tags[fmt.Sprint(message[0])] = true
		for _, entry := range message[1].([]any) { //nolint:forcetypeassert // a panic fails the test
			record := map[string]any{}
			for k, v := range entry.([]any)[1].(map[any]any) { //nolint:forcetypeassert // as above
				record[fmt.Sprint(k)] = v
			}
			f.records = append(f.records, record)
			if text, ok := strings.CutPrefix(fmt.Sprint(record["log"]), "line "); ok {
				n, _ := strconv.Atoi(text)
				f.seen[n]++
			}
		}
		f.mu.Unlock()
		options := message[2].(map[any]any) //nolint:forcetypeassert // as above
		if chunk, ok := options["chunk"]; ok {
			if err := enc.Encode(map[string]any{"ack": chunk}); err != nil {
				return
			}
		}
	}
}

// TestFluentdLosesNothingWhileTheAgentIsKilled: records with docker's keys, acknowledged, in twenty kills of the agent.
func TestFluentdLosesNothingWhileTheAgentIsKilled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		f := &forward{seen: map[int]int{}, tags: map[string]bool{}, l: l}
		go f.serve(t)
		n, image := start(t)
		cli(t, n, "run", "-d", "--name", "c", "-e", "STAGE=test", "--log-driver", "fluentd", "--log-opt", "fluentd-address="+l.Addr().String(), "--log-opt", "fluentd-request-ack=true",
			"--log-opt", "tag=docker.{{.Name}}", "--log-opt", "env=STAGE",
			image, "sh", "-c", "i=0; while [ ! -e /end ]; do i=$((i+1)); echo line $i; [ $((i%50)) = 0 ] && usleep 1000; done; echo last $i >&2")
		id := strings.TrimSpace(cli(t, n, "inspect", "--format", "{{.Id}}", "c"))
		const kills, batch = 20, 256
		count := func() int { f.mu.Lock(); defer f.mu.Unlock(); return len(f.seen) }
		for range kills {
			before := count()
			roottest.Eventually(t, "lines arrive", func() bool { return count() > before+100 })
			n.Kill()
			n.Up()
		}
		_, _ = n.CLI("exec", "c", "touch", "/end") // the program's end may kill it
		cli(t, n, "wait", "c")
		cli(t, n, "rm", "c")
		f.mu.Lock()
		defer f.mu.Unlock()
		last := f.records[len(f.records)-1]
		text, ok := strings.CutPrefix(fmt.Sprint(last["log"]), "last ")
		lines, err := strconv.Atoi(text)
		if !ok || err != nil || last["source"] != "stderr" || last["container_id"] != id || last["container_name"] != "/c" || last["STAGE"] != "test" || !f.tags["docker.c"] || len(f.tags) != 1 {
			t.Errorf("%v, tags %v", last, f.tags)
		}
		again := 0
		for _, n := range f.seen {
			again += n - 1
		}
		t.Logf("%d lines, %d arrived again", lines, again)
		if len(f.seen) != lines || again > kills*batch {
			t.Errorf("%d of %d lines arrived, %d of them again", len(f.seen), lines, again)
		}
	})
}
