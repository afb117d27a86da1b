package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/trail"
	"github.com/longshore/longshore/test/nodetest"
)

// records returns the lines of the trail, and checks them.
func records(t *testing.T, n *nodetest.Node) (all []trail.Record) {
	t.Helper()
	out, err := n.CLI("audit", "--json")
	if err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	in := bufio.NewScanner(strings.NewReader(out))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r trail.Record
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", in.Text(), err)
		}
		all = append(all, r)
	}
	if out, err := n.CLI("audit", "--verify"); err != nil {
		t.Errorf("%s, %v", out, err)
	}
	return all
}

// TestTheLinesOfAllFaces: each changing call has exactly one line, with its face, its client, its object and its outcome.
func TestTheLinesOfAllFaces(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := filepath.Join(dir, "docker.sock")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[network]\nmode = \"builtin\"\n[face.docker]\nenabled = true\nsocket = %q\n[face.mesos]\nenabled = true\n", socket)})
		image := n.Busybox(t)
		cli := func(args ...string) {
			t.Helper()
			if out, err := n.CLI(args...); err != nil {
				t.Fatalf("longshore %s: %s, %v", strings.Join(args, " "), out, err)
			}
		}
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		cli("run", "-d", "--egress", "internet", "--name", "web", image, "sleep", "1000")
		cli("exec", "web", "true")
		cli("cp", file, "web:/file")
		cli("cp", "web:/file", file)
		cli("kill", "-s", "USR1", "web")
		cli("egress", "set", "web", "example.com")
		cli("pause", "web")
		cli("resume", "web")
		cli("volume", "create", "data")
		if _, err := n.CLI("rm", "web"); err == nil {
			t.Error("a running container was removed")
		}
		cli("rm", "-f", "web")
		pod := n.RunPod(t, n.PodConfig("pod"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		if _, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/true"}}); err != nil {
			t.Fatal(err)
		}
		pod.Remove(t)
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
		for _, call := range [][2]string{
			{"/images/create?fromImage=" + url.QueryEscape(image), ""},
			{"/containers/create?name=box", fmt.Sprintf(`{"Image":%q,"Cmd":["sleep","1000"]}`, image)},
			{"/containers/box/start", ""},
			{"/containers/none/start", ""},
			{"/networks/create", `{"Name":"net"}`},
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://docker"+call[0], strings.NewReader(call[1]))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode > 299 && !strings.Contains(call[0], "none") {
				t.Errorf("%s: %s: %s, %v", call[0], resp.Status, b, err)
			}
			_ = resp.Body.Close()
		}
		cli("rm", "-f", "--force", "box")
		conn, err := grpc.NewClient("unix:"+filepath.Join(n.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ctx := metadata.AppendToOutgoingContext(t.Context(), access.Via, "web page, 192.0.2.1")
		if _, err := longshorev1.NewVolumesClient(conn).CreateVolume(ctx, &longshorev1.CreateVolumeRequest{Name: "paged"}); err != nil {
			t.Fatal(err)
		}

		all := records(t, n)
		count := func(match func(r *trail.Record) bool) (k int) {
			for i := range all {
				if match(&all[i]) {
					k++
				}
			}
			return k
		}
		for _, want := range []struct{ face, call, verb, name, outcome string }{
			{"control", "Create", "create", "web", trail.OK},
			{"control", "Exec", "exec", "web", trail.OK},
			{"control", "CopyIn", "", "web", trail.OK},
			{"control", "CopyOut", "", "web", trail.OK},
			{"control", "Kill", "kill", "web", trail.OK},
			{"control", "SetEgress", "", "web", trail.OK},
			{"control", "Pause", "pause", "web", trail.OK},
			{"control", "Resume", "resume", "web", trail.OK},
			{"control", "CreateVolume", "", "data", trail.OK},
			{"control", "Remove", "", "web", trail.Failed},
			{"cri", "ExecSync", "exec", "", trail.OK},
			{"cri", "RunPodSandbox", "create", "", trail.OK},
			{"cri", "CreateContainer", "create", "", trail.OK},
			{"cri", "StartContainer", "start", "", trail.OK},
			{"cri", "RemovePodSandbox", "remove", "", trail.OK},
			{"docker", "POST /images/create", "", image, trail.OK},
			{"docker", "POST /containers/create", "create", "", trail.OK},
			{"docker", "POST /containers/{id...}/start", "start", "", trail.OK},
			{"docker", "POST /containers/{id...}/start", "", "none", trail.Failed},
			{"docker", "POST /networks/create", "", "", trail.OK},
		} {
			got := count(func(r *trail.Record) bool {
				return r.Face == want.face && r.Call == want.call && r.Verb == want.verb && (want.name == "" || r.Name == want.name) && r.Outcome == want.outcome &&
					(r.Kind != "sandbox" || want.face == "cri" && want.call != "CreateContainer")
			})
			if got == 0 || got > 1 && want.call != "RemovePodSandbox" {
				t.Errorf("%d lines of %+v", got, want)
			}
		}
		self := fmt.Sprintf("uid %d, pid ", os.Getuid())
		if k := count(func(r *trail.Record) bool { return r.Face != "" && !strings.HasPrefix(r.Peer, self) }); k > 0 {
			t.Errorf("%d lines without the client's process", k)
		}
		if k := count(func(r *trail.Record) bool {
			return r.Name == "paged" && strings.HasSuffix(r.Peer, ", for web page, 192.0.2.1")
		}); k != 1 {
			t.Errorf("%d lines have the user of a page", k)
		}
		if k := count(func(r *trail.Record) bool {
			return strings.HasPrefix(r.Call, "List") || strings.HasPrefix(r.Call, "GET") || r.Call == "Version" || r.Call == "Inspect"
		}); k > 0 {
			t.Errorf("%d lines of calls that only read", k)
		}
		if t.Failed() {
			for i := range all {
				b, _ := json.Marshal(all[i])
				t.Logf("%s", b)
			}
		}
		n.Check()
	})
}

// TestNoAcknowledgedChangeWithoutItsLine: clients make, enter, signal and remove containers while the agent is killed again and
// again. Each acknowledged change is in the trail, and the chain is whole. LONGSHORE_AUDIT_KILLS is the number of kills.
func TestNoAcknowledgedChangeWithoutItsLine(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		kills := 3
		if s := os.Getenv("LONGSHORE_AUDIT_KILLS"); s != "" {
			var err error
			if kills, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Config: "[audit]\nbytes = 65536\nfiles = 100\n"})
		image := n.Busybox(t)
		var mu sync.Mutex
		acknowledged := map[[2]string]bool{}
		done := make(chan struct{})
		enough := make(chan struct{}, 1000)
		var clients sync.WaitGroup
		for k := range 3 {
			clients.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
					}
					name, made := fmt.Sprintf("c%d-%d", k, i), false
					for _, step := range []struct {
						verb string
						args []string
					}{
						{"create", []string{"run", "-d", "--name", name, image, "sleep", "1000"}},
						{"exec", []string{"exec", name, "true"}},
						{"kill", []string{"kill", "-s", "URG", name}},
						{"remove", []string{"rm", "-f", name}},
					} {
						if _, err := n.CLI(step.args...); err == nil && (made || step.verb == "create") { // rm -f succeeds without a container
							made = true
							mu.Lock()
							acknowledged[[2]string{step.verb, name}] = true
							mu.Unlock()
							select {
							case enough <- struct{}{}:
							default:
							}
						}
					}
				}
			})
		}
		for range kills {
			for range 10 { // changes between two kills
				<-enough
			}
			n.Kill()
			n.Up()
		}
		close(done)
		clients.Wait()
		written := map[[2]string]bool{}
		all := records(t, n)
		for _, r := range all {
			if r.Outcome == trail.OK {
				written[[2]string{r.Verb, r.Name}] = true
			}
		}
		missing := 0
		for change := range acknowledged {
			if !written[change] {
				missing++
				t.Errorf("%s of %s was acknowledged and has no line", change[0], change[1])
			}
		}
		t.Logf("%d kills, %d acknowledged changes, %d lines, %d missing", kills, len(acknowledged), len(all), missing)

		// Removed and changed lines are found.
		n.Stop()
		dir := filepath.Join(n.Root, "audit")
		path := filepath.Join(dir, "audit.log")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(whole, []byte("\n"))
		for name, b := range map[string][]byte{
			"the last line is removed":  bytes.Join(lines[:len(lines)-2], nil),
			"the first line is removed": bytes.Join(lines[1:], nil),
			"an outcome is changed":     bytes.Replace(whole, []byte(`"outcome":"ok"`), []byte(`"outcome":"failed"`), 1),
		} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := n.CLI("audit", "--verify", "--dir", dir); err == nil || !strings.Contains(out+err.Error(), "the audit trail was changed") {
				t.Errorf("%s: %s, %v", name, out, err)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := n.CLI("audit", "--verify", "--dir", dir); err != nil {
			t.Errorf("%s, %v", out, err)
		}
	})
}
