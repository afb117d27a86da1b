package endings

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestWhereAStartTookItsTimeIsTold: for a container of each face, with its pull, also after the agent's
// death; and the metrics have a histogram for each stage and face.
func TestWhereAStartTookItsTimeIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		ref := image(t, n)
		for _, c := range []struct {
			owner string
			face  face
			parts []string // in their order
		}{
			// Its pull was before: the agent knows of that until it dies.
			{"cri", newCRIFace(t, n, ref), []string{"started", "pull of its image", "asked by cri", "fetch", "sandbox", "network", "container", "root", "launch", "start", "asked by cri"}},
			{"cli", &cliFace{n: n, image: ref}, []string{"started", "pull of its image", "asked by cli", "resolve", "sandbox", "network", "container", "root", "launch"}},
			{"nomad", newNomadFace(t, n, ref), []string{"started", "pull of its image", "asked by nomad", "resolve", "sandbox", "container", "root", "launch"}},
			{"mesos", &mesosFace{n: n, image: ref}, []string{"started", "pull of its image", "asked by mesos", "resolve", "sandbox", "container", "root", "launch"}},
		} {
			t.Run(c.owner, func(t *testing.T) {
				if !c.face.start(t, "timed", death{script: "trap 'exit 0' TERM" + forever}) {
					t.Fatal("it does not start")
				}
				x := find(t, n, c.owner)
				out, err := n.CLI("why", "--start", x.ID)
				rest := out
				for _, part := range c.parts {
					before, after, found := strings.Cut(rest, part)
					if !found {
						t.Errorf("why --start lacks %q (behind %q): %v\n%s", part, before, err, out)
						break
					}
					rest = after
				}
				t.Logf("\n%s", out)
				metrics := get(t, n, "/metrics")
				for _, stage := range []string{"create_sandbox.network", "create.root", "create.launch"} {
					name := fmt.Sprintf("longshore_engine_stage_duration_seconds_count{face=%q,stage=%q} ", c.owner, stage)
					_, count, found := strings.Cut(metrics, name)
					count, _, _ = strings.Cut(count, "\n")
					if of, err := strconv.Atoi(count); !found || err != nil || of < 1 {
						t.Errorf("the metrics lack %s: %v", name, err)
					}
				}
				n.Kill()
				n.Up()
				if again, err := n.CLI("why", "--start", x.ID); err != nil || again != out {
					t.Errorf("after the agent's death: %v\n%s", err, again)
				}
				c.face.stop(t, syscall.SIGTERM, time.Minute)
				c.face.ended(t)
				c.face.remove(t)
			})
		}
		n.Check()
	})
}

// TestALowLimitOfDescriptorsIsRaised: an agent that a shell has started with few descriptors has more,
// with its keeper, and says for how many containers that is enough.
func TestALowLimitOfDescriptorsIsRaised(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
			t.Fatal(err)
		}
		own.Cur = 256
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{})
		for role, pids := range map[string][]int{"agent": {n.Pid()}, "keeper": n.Processes("keeper")} {
			for _, pid := range pids {
				var l unix.Rlimit
				if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l); err != nil || l.Cur < min(1<<16, own.Max) {
					t.Errorf("the %s has %d descriptors, %v", role, l.Cur, err)
				}
			}
		}
		out, _ := n.CLI("doctor") // it may warn of this machine's faults
		_, room, _ := strings.Cut(out, "for about ")
		room, _, _ = strings.Cut(room, "\n")
		for _, limit := range []string{" more containers: ", "descriptors ", "pids ", "inotify ", "keyrings ", n.State + " "} {
			if !strings.Contains(room, limit) {
				t.Errorf("doctor does not count %q:\n%s", limit, out)
			}
		}
		n.Check()
	})
}

// get asks the agent's own HTTP server.
func get(t *testing.T, n *nodetest.Node, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.State, "control-http.sock"))
	}}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return string(body)
}
