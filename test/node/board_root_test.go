package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// onBoard pulls an image of the test's program that uses the board.
func onBoard(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "onboard")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/onboard")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	image := imagetest.Image{Layers: [][]imagetest.File{{{Name: "program", Body: out, Mode: 0o755}}}}.Build()
	ref := imagetest.NewRegistry(t).Push("onboard", "latest", image)
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// realm is where programs see each other: an owner and its namespace.
type realm struct {
	owner, namespace string
	start            func(name, document, data string)
}

func (p realm) String() string { return p.owner + "/" + p.namespace }

// boardKills is how often agent and keeper are killed each, and boardConnections how many connections all clients make at least.
func boardKills(t *testing.T) (kills, connections int) {
	t.Helper()
	kills = 2
	if s := os.Getenv("LONGSHORE_BOARD_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return kills, 1000
}

// TestTheBoardWhileAgentAndKeeperDie: clients of several owners and namespaces connect to servers of the same names, and each to its
// own, while agent and keeper are killed. No connection and no handle is lost.
func TestTheBoardWhileAgentAndKeeperDie(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		kills, connections := boardKills(t)
		n := nodetest.Start(t, nodetest.Options{})
		image := onBoard(t, n)
		var places []realm
		for _, namespace := range []string{"one", "two"} {
			cfg := n.PodConfig(namespace)
			cfg.Metadata.Namespace = namespace
			pod := n.RunPod(t, cfg)
			places = append(places, realm{"cri", namespace, func(name, document, data string) {
				pod.Run(t, granted(name, image, document, &runtimeapi.Mount{ContainerPath: "/data", HostPath: data}))
			}})
		}
		places = append(places, realm{"cli", "", func(name, document, data string) {
			out, err := n.CLI("run", "-d", "--pull", "missing", "--name", name, "--runtime", core.GrantHandler, "--annotation", core.GrantAnnotation+"="+document, "-v", data+":/data", image, "/program")
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}})
		apps := []string{"db", "web"}
		for _, p := range places {
			for _, app := range apps {
				p.start(app, fmt.Sprintf("{name: %s of %s, serve: !server {app: %s}}", app, p, app), t.TempDir())
			}
		}
		want := fmt.Sprintf(", %d servers", len(places)*len(apps))
		nodetest.Eventually(t, "all servers are there", func() bool { return strings.HasSuffix(boardSays(t, n), want) })
		results := map[string]string{}
		for _, p := range places {
			var asks []string
			for _, app := range apps {
				asks = append(asks, fmt.Sprintf("{labels: {app: %s}, want: %s of %s for %s}", app, app, p, p))
			}
			dir := t.TempDir()
			results[p.String()] = dir
			p.start("client", fmt.Sprintf("{connect: !client {}, data: !mount /data, count: %d, asks: [%s]}", connections/len(places)+1, strings.Join(asks, ", ")), dir)
		}
		pid, _, _ := strings.Cut(boardSays(t, n), " is confined by landlock")
		for range kills {
			n.Kill()
			n.KillKeeper()
			nodetest.Pause(20)
			n.Up()
			n.KeeperBack()
		}
		if after := boardSays(t, n); !strings.HasPrefix(after, pid+" is confined by landlock") || !strings.HasSuffix(after, want) {
			t.Errorf("the board was %s, and is now: %s", pid, after)
		}
		sum := 0
		for p, dir := range results {
			if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			var result string
			nodetest.Eventually(t, p+" has its result", func() bool {
				b, err := os.ReadFile(filepath.Join(dir, "result"))
				result = string(b)
				return err == nil
			})
			var right, kept int
			if k, err := fmt.Sscanf(result, "right %d kept %d", &right, &kept); k != 2 || err != nil || kept != len(apps) {
				t.Errorf("%s: %s", p, result)
			}
			sum += right
		}
		if sum < connections {
			t.Errorf("%d connections", sum)
		}
		t.Logf("%d connections, agent and keeper killed %d times each", sum, kills)
		n.Check()
	})
}

// TestAHandleEndsWithItsContainer: a program gives its handle to another one, which can use it as the first one's until that ends, also
// while there is no agent.
func TestAHandleEndsWithItsContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := onBoard(t, n)
		pod := n.RunPod(t, n.PodConfig("pod"))
		start := func(name, document string) (*nodetest.Container, string) {
			dir := t.TempDir()
			return pod.Run(t, granted(name, image, "{role: "+name+", data: !mount /data, "+document+"}", &runtimeapi.Mount{ContainerPath: "/data", HostPath: dir})), dir
		}
		_, taker := start("taker", "serve: !server {for: gifts}")
		nodetest.Eventually(t, "the server is there", func() bool { return strings.HasSuffix(boardSays(t, n), ", 1 servers") })
		_, giver := start("giver", "connect: !client {for: gifts}")
		there := func(path string) func() bool {
			return func() bool { _, err := os.Stat(path); return err == nil }
		}
		nodetest.Eventually(t, "the handle is used", there(filepath.Join(taker, "used")))
		n.Kill()
		if err := os.WriteFile(filepath.Join(giver, "stop"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the handle has ended", there(filepath.Join(taker, "result")))
		result, err := os.ReadFile(filepath.Join(taker, "result"))
		if err != nil || !strings.Contains(string(result), " times as giver, then: board: ") {
			t.Errorf("%s, %v", result, err)
		}
		n.Up()
		nodetest.Eventually(t, "nothing is left on the board", func() bool { return strings.HasPrefix(boardSays(t, n), "not running") })
		pod.Remove(t)
		n.Check()
	})
}

// TestTheAgentIsOnTheBoardForThoseWhomThePolicyNames: only a client that the policy names calls it, and only reading
// calls.
func TestTheAgentIsOnTheBoardForThoseWhomThePolicyNames(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "grants.yaml")
		const rules = "rules: [{allow: [!client {}, !mount {path: /data, rights: [read, write]}]}]\n"
		policy := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		policy(rules)
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("grants_policy = %q\n", file)})
		image := onBoard(t, n)
		started := 0
		reads := func(namespace, want string) {
			t.Helper()
			started++
			cfg := n.PodConfig(fmt.Sprint("pod", started))
			cfg.Metadata.Namespace = namespace
			pod, dir := n.RunPod(t, cfg), t.TempDir()
			c := pod.Run(t, granted("reader", image, "{role: reader, data: !mount /data, connect: !client {service: control}}", &runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}))
			c.WaitExited(t)
			result, err := os.ReadFile(filepath.Join(dir, "result"))
			if err != nil || !strings.Contains(string(result), want) {
				t.Errorf("%s: %q, %v, want %q; log: %s", namespace, result, err, want, c.ReadLog(t))
			}
			pod.Remove(t)
		}
		const none, some = "no server in cri/ops matches", "of longshore: 1 containers; stop: PermissionDenied"
		reads("ops", none)
		policy(rules + "board: [{client: {}, server: {}}]\n")
		reads("ops", none)
		policy(rules + "board: [{client: {owner: cri, namespace: ops}, server: {owner: longshore}}]\n")
		n.Kill()
		n.Up()
		nodetest.Eventually(t, "the agent is on the board", func() bool { return strings.HasSuffix(boardSays(t, n), ", 1 servers") })
		reads("ops", some)
		reads("web", "no server in cri/web matches")
		n.Check()
	})
}

// TestModulesAreOnTheBoard: a WebAssembly module connects to a native program, and a native program to a module.
func TestModulesAreOnTheBoard(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		native := onBoard(t, n)
		module := imagetest.Wasm{ // compiled once, at the pull
			Module: wasip1(t, "wasip1board"), LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
			Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
		}.Build()
		ref := imagetest.NewRegistry(t).Push("module", "v1", module)
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		pod, dir := n.RunPod(t, n.PodConfig("pod")), t.TempDir()
		ofModule := func(name, document string) *nodetest.Container {
			cfg := granted(name, ref, document)
			cfg.Command = nil
			return pod.Run(t, cfg)
		}
		server := ofModule("module-server", "{log: !container_log , name: a module for cri/test, serve: !server {app: module}}")
		pod.Run(t, granted("server", native, "{name: a program, serve: !server {app: native}}"))
		nodetest.Eventually(t, "both servers are there", func() bool { return strings.HasSuffix(boardSays(t, n), ", 2 servers") })
		client := ofModule("module-client", "{log: !container_log , connect: !client {app: native}, nobody: !client {app: nobody}}")
		if st := client.WaitExited(t); st.GetExitCode() != 0 || !strings.Contains(client.ReadLog(t), "/svc/connect says a program for cri/test\n") {
			t.Errorf("it ended with %d: %s", st.GetExitCode(), client.ReadLog(t))
		}
		if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		c := pod.Run(t, granted("client", native, "{connect: !client {app: module}, data: !mount /data, count: 3, asks: [{want: a module for cri/test}]}", &runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}))
		c.WaitExited(t)
		if result, err := os.ReadFile(filepath.Join(dir, "result")); err != nil || string(result) != "right 3 kept 1" {
			t.Errorf("%q, %v; the module: %s", result, err, server.ReadLog(t))
		}
		pod.Remove(t)
		n.Check()
	})
}

// boardSays returns doctor's finding of it.
func boardSays(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	return n.Finding(t, "board")
}
