package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestUpgradeOfTheKeeper: a new file in the place of longshore-keeper is named by version and doctor, becomes the keeper by
// `longshore upgrade` under running containers, and a file that is no keeper does not.
func TestUpgradeOfTheKeeper(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := copiedBin(t)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := n.Busybox(t)
		keeper := filepath.Join(bin, "longshore-keeper")
		program, err := os.ReadFile(keeper)
		if err != nil {
			t.Fatal(err)
		}
		replace := func(content []byte) { install(t, keeper, content) }
		state := func(name string) string { return processState(t, n, name) }

		pod := n.RunPod(t, n.PodConfig("upgrade"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", countsUntilTold))
		before := n.Processes("keeper")
		for _, name := range []string{"agent", "keeper", "nest"} {
			if s := state(name); s != "current" {
				t.Errorf("%s is %q", name, s)
			}
		}
		if out, err := n.CLI("upgrade"); err != nil || strings.Contains(out, "upgraded") {
			t.Errorf("nothing to upgrade: %q, %v", out, err)
		}

		replace([]byte("#!/bin/sh\nexit 1\n"))
		if out, err := n.CLI("upgrade"); err == nil || state("keeper") != "replaced" || !strings.Contains(n.Finding(t, "programs"), "keeper, pid") {
			t.Errorf("a file that is no keeper: %q, %v", out, err)
		}
		for i := range 3 {
			replace(append(append([]byte{}, program...), strings.Repeat("x", i+1)...))
			if s := state("keeper"); s != "replaced" {
				t.Errorf("after the exchange of its file the keeper is %q", s)
			}
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  keeper\n") {
				t.Errorf("upgrade: %q, %v", out, err)
			}
			if s, nest := state("keeper"), state("nest"); s != "current" || nest != "replaced" {
				t.Errorf("after the upgrade the keeper is %q, the nest %q", s, nest)
			}
			if d := n.Finding(t, "programs"); !strings.Contains(d, "each from its installed file") {
				t.Error(d)
			}
			r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/echo", "here"}, Timeout: 30})
			if err != nil || string(r.GetStdout()) != "here\n" {
				t.Errorf("exec: %v, %v", r, err)
			}
		}
		if now := n.Processes("keeper"); len(now) != 1 || len(before) != 1 || now[0] != before[0] {
			t.Errorf("keepers %v, and %v before", now, before)
		}
		if st := c.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container: %v", st)
		}
		stopsWhole(t, n, c)
		pod.Remove(t)
		clean(t, n)
	})
}

// TestUpgradeOfTheAgent: the agent becomes the installed program in its own process. Clients that connect all the time are never
// refused, and repeat a call once at most. A program that does not accept the configuration, or that cannot start, replaces none.
func TestUpgradeOfTheAgent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := copiedBin(t)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := n.Busybox(t)
		agent := filepath.Join(bin, "longshore")
		program, err := os.ReadFile(agent)
		if err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("upgrade"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", countsUntilTold))
		pid, socket := n.Pid(), filepath.Join(n.State, "cri.sock")

		ctx, stop := context.WithCancel(t.Context())
		var clients errgroup.Group
		var calls atomic.Int64
		for range 3 {
			clients.Go(func() error {
				for ctx.Err() == nil {
					if err := newCall(socket); err != nil {
						if again := newCall(socket); again != nil {
							return fmt.Errorf("%w, and again %w", err, again)
						}
					}
					calls.Add(1)
				}
				return nil
			})
		}
		refused := func(why string, content string) {
			t.Helper()
			install(t, agent, []byte(content))
			defer install(t, agent, program)
			if out, err := n.CLI("upgrade"); err == nil || n.Pid() != pid {
				t.Errorf("%s: %q, %v", why, out, err)
			}
		}
		refused("a program that does not start", "#!/bin/sh\necho no such luck >&2\nexit 1\n")
		whole := filepath.Join(bin, "longshore.real")
		install(t, whole, program)
		refused("a program that fails after the handover", `#!/bin/sh
			case "$*" in *"config check"*) exit 0;; esac
			LONGSHORE_HANDOVER=$(echo "$LONGSHORE_HANDOVER" | sed 's/"sockets":{/"sockets":{"bad":999,/') exec `+whole+` "$@"
		`)
		if d := n.Finding(t, "programs"); !strings.Contains(d, "bad") {
			t.Errorf("doctor does not name the failure: %s", d)
		}
		for i := range 3 {
			install(t, agent, append(append([]byte{}, program...), strings.Repeat("x", i+1)...))
			if s := processState(t, n, "agent"); s != "replaced" {
				t.Errorf("after the exchange of its file the agent is %q", s)
			}
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  agent\n") {
				t.Errorf("upgrade: %q, %v", out, err)
			}
			if s := processState(t, n, "agent"); s != "current" || n.Pid() != pid {
				t.Errorf("after the upgrade the agent is %q, pid %d, and was %d", s, n.Pid(), pid)
			}
			r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/echo", "here"}, Timeout: 30})
			if err != nil || string(r.GetStdout()) != "here\n" {
				t.Errorf("exec: %v, %v", r, err)
			}
		}
		stop()
		if err := clients.Wait(); err != nil || calls.Load() < 10 {
			t.Errorf("after %d calls: %v", calls.Load(), err)
		}
		stopsWhole(t, n, c)
		pod.Remove(t)
		clean(t, n)
	})
}

// TestUpgradeOfTheNameServer: `longshore upgrade` replaces the process that answers sandboxes' questions, and each question is answered
// meanwhile. The next agent, after a death, uses the same process.
func TestUpgradeOfTheNameServer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := copiedBin(t)
		n := nodetest.Start(t, nodetest.Options{Bin: bin, Config: "[network]\nmode = \"builtin\"\n"})
		image := n.Busybox(t)
		agent := filepath.Join(bin, "longshore")
		program, err := os.ReadFile(agent)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"network", "create", "near"},
			{"run", "-d", "--init=false", "--network", "near", "--name", "db", image, "sleep", "100000"},
			{"run", "-d", "--init=false", "--network", "near", "--name", "asks", image, "sh", "-c", "trap 'stop=1' TERM; while [ -z \"$stop\" ]; do nslookup -type=a db >/dev/null 2>&1 && echo answered || echo lost; done; exit 7"},
		} {
			if out, err := n.CLI(args...); err != nil {
				t.Fatalf("%v: %s, %v", args, out, err)
			}
		}
		answers := func() int {
			out, err := n.CLI("logs", "asks")
			if err != nil || strings.Contains(out, "lost") {
				t.Fatalf("%d answers, %d lost, %v", strings.Count(out, "answered"), strings.Count(out, "lost"), err)
			}
			return strings.Count(out, "answered")
		}
		more := func(what string) {
			t.Helper()
			had := answers()
			roottest.Eventually(t, what+": further answers", func() bool { return answers() > had+5 })
		}
		more("first")
		before := nodetest.Processes("longshore-names", "")
		for i := range 3 {
			install(t, agent, append(append([]byte{}, program...), strings.Repeat("x", i+1)...))
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  names\n") {
				t.Errorf("upgrade: %q, %v", out, err)
			}
			more("after an upgrade")
			roottest.Eventually(t, "the process before has ended", func() bool {
				now := nodetest.Processes("longshore-names", "")
				return len(now) == 1 && now[0] != before[0]
			})
			if s := processState(t, n, "names"); s != "current" {
				t.Errorf("the name server is %q", s)
			}
			before = nodetest.Processes("longshore-names", "")
		}
		n.Kill()
		n.Up()
		more("after the agent's death")
		if now := nodetest.Processes("longshore-names", ""); len(now) != 1 || now[0] != before[0] {
			t.Errorf("name servers %v, and %v before", now, before)
		}
		for _, name := range []string{"asks", "db"} {
			if _, err := n.CLI("rm", "-f", name); err != nil {
				t.Error(err)
			}
		}
		if _, err := n.CLI("network", "rm", "near"); err != nil {
			t.Error(err)
		}
		clean(t, n)
	})
}

// newCall makes a call on a new connection.
func newCall(socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// copiedBin copies the directory of the binaries, so that a test may replace them.
func copiedBin(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "cp", "-r", nodetest.Bin(t)+"/.", bin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// install puts a new file in the place of a program, as a package does.
func install(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// processState returns the state of one of the node's processes.
func processState(t *testing.T, n *nodetest.Node, name string) string {
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
	for _, p := range v.Agent.Processes {
		if p.Name == name && p.Pid > 1 {
			return p.State
		}
	}
	t.Fatalf("no process %s: %s", name, out)
	return ""
}

// countsUntilTold writes numbers until SIGTERM, and then a last word.
const countsUntilTold = "trap 'echo told; exit 7' TERM; i=0; while :; do i=$((i+1)); echo $i; usleep 2000; done"

// stopsWhole stops a container with that program, and checks its exit status and its log.
func stopsWhole(t *testing.T, n *nodetest.Node, c *nodetest.Container) {
	t.Helper()
	if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if st := c.Status(t); st.GetExitCode() != 7 {
		t.Errorf("the exit: %v", st)
	}
	wholeLog(t, c)
}

// wholeLog checks that a log has the numbers from 1 on without a gap, and then the program's last word.
func wholeLog(t *testing.T, c *nodetest.Container) {
	t.Helper()
	last := 0
	for line := range strings.Lines(c.ReadLog(t)) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " F ")
		if text == "told" && last > 3 {
			return
		}
		if last++; text != strconv.Itoa(last) {
			t.Fatalf("line %d of the log is %q", last, line)
		}
	}
	t.Errorf("the log has %d lines and no end", last)
}
