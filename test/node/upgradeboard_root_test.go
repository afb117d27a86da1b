package node

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	boardprogram "github.com/longshore/longshore/program"
	"github.com/longshore/longshore/test/nodetest"
)

// processStates returns the state of each of the node's processes of a name, by their pids.
func processStates(t *testing.T, n *nodetest.Node, name string) map[int]string {
	t.Helper()
	out, err := n.CLI("version", "--json")
	var v struct {
		Agent struct {
			Processes []struct {
				Name, State string
				Pid         int
			}
		}
	}
	if perr := json.Unmarshal([]byte(out), &v); err != nil || perr != nil {
		t.Fatalf("%v, %v: %s", err, perr, out)
	}
	states := map[int]string{}
	for _, p := range v.Agent.Processes {
		if p.Name == name {
			states[p.Pid] = p.State
		}
	}
	return states
}

// TestUpgradeOfTheBoard: `longshore upgrade` replaces the board under programs that connect all the time. No connection and no handle is
// lost, and the agent stays a server there.
func TestUpgradeOfTheBoard(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := copiedBin(t)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := onBoard(t, n)
		pod, dir := n.RunPod(t, n.PodConfig("board")), t.TempDir()
		for _, app := range []string{"db", "web"} {
			pod.Run(t, granted(app, image, fmt.Sprintf("{name: %s, serve: !server {app: %s}}", app, app)))
		}
		nodetest.Eventually(t, "all servers are there", func() bool { return strings.HasSuffix(boardSays(t, n), ", 2 servers") })
		pod.Run(t, granted("client", image, "{connect: !client {}, data: !mount /data, count: 200, asks: [{labels: {app: db}, want: db for cri/test}, {labels: {app: web}, want: web for cri/test}]}",
			&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}))
		agent := filepath.Join(bin, "longshore")
		content, err := os.ReadFile(agent)
		if err != nil {
			t.Fatal(err)
		}
		before := processStates(t, n, "board")
		for i := range 3 {
			install(t, agent, append(append([]byte{}, content...), strings.Repeat("x", i+1)...))
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  board\n") || !strings.Contains(out, "process   board ") {
				t.Errorf("upgrade: %q, %v", out, err)
			}
			after := processStates(t, n, "board")
			for pid, state := range after {
				if _, same := before[pid]; same || state != "current" || len(after) != 1 {
					t.Errorf("the board is %v, and was %v", after, before)
				}
			}
			if d := n.Finding(t, "programs"); !strings.Contains(d, "each from its installed file") {
				t.Error(d)
			}
			if says := boardSays(t, n); !strings.HasSuffix(says, ", 2 servers") || !strings.Contains(says, "landlock") {
				t.Error(says)
			}
			before = after
		}
		if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var result string
		nodetest.Eventually(t, "the result", func() bool {
			b, err := os.ReadFile(filepath.Join(dir, "result"))
			result = string(b)
			return err == nil
		})
		var right, kept int
		if k, err := fmt.Sscanf(result, "right %d kept %d", &right, &kept); k != 2 || err != nil || kept != 2 || right < 200 {
			t.Error(result)
		}
		pod.Remove(t)
		nodetest.Eventually(t, "the board ends with its last handle", func() bool { return strings.HasPrefix(boardSays(t, n), "not running") })
		clean(t, n)
	})
}

// sleeping is a module that sleeps a second at a time, without an end: (loop (poll_oneoff (clock 1s))).
func sleeping() []byte {
	section := func(id byte, body string) string { return string([]byte{id, byte(len(body))}) + body }
	subscription := strings.Repeat("\x00", 16) + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x00\xca\x9a\x3b\x00\x00\x00\x00" + strings.Repeat("\x00", 16)
	return []byte("\x00asm\x01\x00\x00\x00" +
		section(1, "\x02\x60\x04\x7f\x7f\x7f\x7f\x01\x7f\x60\x00\x00") +
		section(2, "\x01\x16wasi_snapshot_preview1\x0bpoll_oneoff\x00\x00") +
		section(3, "\x01\x01") + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00\x01\x06memory\x02\x00") +
		section(10, "\x01\x14\x00\x03\x40\x41\x10\x41\x80\x01\x41\x01\x41\x80\x02\x10\x00\x1a\x0c\x00\x0b\x0b") +
		section(11, "\x01\x00\x41\x10\x0b"+string([]byte{byte(len(subscription))})+subscription))
}

// TestUpgradeUnderAModule: the process of a WebAssembly program continues over an upgrade that replaces its own program. Version and
// doctor name it. The container's next start uses the installed program.
func TestUpgradeUnderAModule(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := copiedBin(t)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		module := imagetest.Wasm{
			Module: sleeping(), LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
			Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
		}.Build()
		image := imagetest.NewRegistry(t).Push("sleeping", "v1", module)
		if out, err := n.CLI("run", "-d", "--name", "module", "--runtime", core.GrantHandler, "--annotation", core.GrantAnnotation+"={}", image); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		before := processStates(t, n, "wasm")
		for _, name := range []string{"longshore", "longshore-wasm"} {
			content, err := os.ReadFile(filepath.Join(bin, name))
			if err != nil {
				t.Fatal(err)
			}
			install(t, filepath.Join(bin, name), append(content, 'x'))
		}
		out, err := n.CLI("upgrade")
		if err != nil || !strings.Contains(out, "longshore-wasm until the container's next start\n") {
			t.Errorf("%q, %v", out, err)
		}
		after := processStates(t, n, "wasm")
		for pid, state := range before {
			if len(before) != 1 || state != "current" || len(after) != 1 || after[pid] != "replaced" {
				t.Errorf("workers %v, and %v before", after, before)
			}
		}
		if d := n.Finding(t, "programs"); !strings.Contains(d, "each from its installed file but 1 of WebAssembly programs") {
			t.Error(d)
		}
		if out, err := n.CLI("restart", "module"); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		now := processStates(t, n, "wasm")
		for pid, state := range now {
			if _, same := before[pid]; same || state != "current" || len(now) != 1 {
				t.Errorf("workers %v, and %v before", now, before)
			}
		}
		if d := n.Finding(t, "programs"); len(now) != 1 || strings.Contains(d, "WebAssembly") {
			t.Errorf("%v: %s", now, d)
		}
		if out, err := n.CLI("rm", "-f", "module"); err != nil {
			t.Errorf("%s, %v", out, err)
		}
		clean(t, n)
	})
}

// TestTheBoardIsKilledAtEveryStage: the board's process or the next one dies at each stage of an upgrade. The other one has all handles
// and servers, except if the first one dies before it has handed over, or the second one after it has taken over: these are deaths of a
// board without another one. A board for new programs is always there, and the next upgrade succeeds.
func TestTheBoardIsKilledAtEveryStage(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		content, err := os.ReadFile(filepath.Join(nodetest.Weakened(t), "longshore"))
		if err != nil {
			t.Fatal(err)
		}
		programs := t.TempDir()
		marked := func(stage int) string {
			path := filepath.Join(programs, fmt.Sprint(stage))
			install(t, path, append(content[:len(content):len(content)], fmt.Sprintf("\nlongshore-marks board-dies=%d\n", stage)...))
			return path
		}
		whole := marked(0)
		const before, all, lost = 4, 8, "1 2 8" // the stages of the process before, and those after which nobody has the handles
		for stage := 1; stage <= all; stage++ {
			dir := filepath.Join(t.TempDir(), "b")
			client := func(path string) *broker.Client {
				return broker.New(broker.Options{Dir: dir, Command: []string{path, broker.Arg}, Logger: slog.New(slog.DiscardHandler)})
			}
			first, second := whole, marked(stage)
			if stage <= before {
				first, second = second, whole
			}
			c := client(first)
			old := pairOn(t, c)
			if err := old(); err != nil {
				t.Fatalf("stage %d: %v", stage, err)
			}
			was, _ := c.Status(t.Context())
			c.Close()
			c = client(second)
			err := c.Renew(t.Context())
			isLost := strings.Contains(lost, fmt.Sprint(stage))
			if died := old() != nil; died != isLost {
				t.Errorf("stage %d: the handles are lost: %v, want %v", stage, died, isLost)
			}
			now, there := c.Status(t.Context())
			if replaced := stage == 2 || stage == 3 || stage == 4; there && (now.PID != was.PID) != replaced || (err == nil) != replaced {
				t.Errorf("stage %d: process %d, and before %d, %v", stage, now.PID, was.PID, err)
			}
			c.Close()
			c = client(whole)
			if err := pairOn(t, c)(); err != nil {
				t.Errorf("stage %d: a new pair of programs: %v", stage, err)
			}
			if err := c.Renew(t.Context()); err != nil {
				t.Errorf("after stage %d: %v", stage, err)
			}
			last, _ := c.Status(t.Context())
			c.Close()
			if last.PID > 0 {
				_ = unix.Kill(last.PID, unix.SIGKILL)
			}
		}
	})
}

// pairOn starts a server on a board, and returns a function that connects to it.
func pairOn(t *testing.T, c *broker.Client) func() error {
	t.Helper()
	handle := func(rights board.Rights) *boardprogram.Handle {
		f, err := c.Handle(t.Context(), broker.Want{Container: fmt.Sprint("c", rights), Realm: board.Realm{Owner: "cri"}, Rights: rights})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		h, err := boardprogram.Open(uintptr(fd))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		return h
	}
	server, err := handle(board.Serve).Serve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			conn, err := server.AcceptConn()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "here")
			_ = conn.Close()
		}
	}()
	connects := handle(board.Connect)
	return func() error {
		conn, err := connects.Connect(t.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if text, err := io.ReadAll(conn); string(text) != "here" {
			return fmt.Errorf("the server says %q, %w", text, err)
		}
		return nil
	}
}
