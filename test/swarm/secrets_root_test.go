package swarm

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/csi/csitest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// Planted secrets: each must be where its user needs it, and nowhere else.
const (
	fileSecret   = "planted-in-a-file-5f1c"
	volumeSecret = "planted-for-a-volume-9a3e"
	password     = "planted-password-77d0"
	bearer       = "planted-for-a-registry-c4e8"
	option       = "planted-in-an-option-e012"
	passphrase   = "planted-passphrase-31b5"
)

// planted are the forms of the secrets: plain, and as they may be sent or kept.
func planted(others ...string) (all []string) {
	for _, s := range append([]string{fileSecret, volumeSecret, password, bearer, option, passphrase}, others...) {
		all = append(all, s, base64.StdEncoding.EncodeToString([]byte(s)), base64.URLEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s)))
	}
	return all
}

// TestSecretsAreNowhereElse: a secret is in its task's files, which are on a tmpfs of
// their own, and with the driver of its volume; no other file of the node, no log, no
// metric, no event, no process's arguments and no answer has it, nor a registry's password
// or token, a password among a volume's options, the join token or the passphrase of the
// node's key; while tasks run, after the agent's death, when they have failed, and after
// leaving.
func TestSecretsAreNowhereElse(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-node-") // a socket's path is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		d := csitest.New(t, dir)
		d.Secret = map[string]string{"key": volumeSecret}
		phrase := filepath.Join(t.TempDir(), "passphrase")
		if err := os.WriteFile(phrase, []byte(passphrase+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{Dir: dir, Config: "[face.swarm]\nenabled = true\nkey_passphrase_file = \"" + phrase + "\"\n[face.swarm.csi]\ntest = \"" + d.Socket + "\"\n"})
		m := swarmtest.New(t)
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		cli := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(args...)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		cli("swarm", "join", m.Addr, "--token", m.Token)

		auth, err := json.Marshal(map[string]string{"username": "someone", "password": password, "registrytoken": bearer})
		if err != nil {
			t.Fatal(err)
		}
		task := func(id, command string) *swarmv1.Task {
			task := swarmtest.Task(id, ref, "sh", "-c", command)
			c := task.GetSpec().GetContainer()
			c.PullOptions = &swarmv1.ContainerSpec_PullOptions{RegistryAuth: base64.URLEncoding.EncodeToString(auth)}
			c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "pw", Mode: 0o400}}}}
			c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_CLUSTER, Source: "data", Target: "/data"}}
			task.Volumes = []*swarmv1.VolumeAttachment{{Id: "v", Source: "data", Target: "/data"}}
			return task
		}
		m.Change(func(_ map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
			secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte(fileSecret)}}
			secrets["k"] = &swarmv1.Secret{Id: "k", Spec: &swarmv1.SecretSpec{Data: []byte(volumeSecret)}}
		})
		m.Publish(&swarmv1.VolumeAssignment{
			Id: "v", VolumeId: "of-v", Driver: &swarmv1.Driver{Name: "test"}, Secrets: []*swarmv1.VolumeSecret{{Key: "key", Secret: "k"}},
			AccessMode: &swarmv1.VolumeAccessMode{AccessType: &swarmv1.VolumeAccessMode_Mount{Mount: &swarmv1.VolumeAccessMode_MountVolume{}}},
		})
		m.Assign(task("runs", "test -s /run/secrets/pw && exec sleep 1000"))
		m.Reaches("runs", swarmv1.TaskState_RUNNING)
		m.Assign(task("fails", "test -s /run/secrets/pw && exit 7"))
		m.Reaches("fails", swarmv1.TaskState_FAILED)
		bad := task("refused", "true")
		bad.GetSpec().GetContainer().Mounts = append(bad.GetSpec().GetContainer().Mounts,
			&swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: "share", Target: "/share", VolumeOptions: &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{
				Name: "local", Options: map[string]string{"type": "cifs", "device": "//127.0.0.1/share", "o": "addr=127.0.0.1,password=" + option},
			}}},
			&swarmv1.Mount{Type: swarmv1.Mount_NPIPE, Target: "/pipe"})
		m.Assign(bad)
		m.Reaches("refused", swarmv1.TaskState_REJECTED)

		s := &searcher{t: t, n: n, planted: planted(m.Token, strings.TrimRight(base64.URLEncoding.EncodeToString(auth), "="), "someone:"+password)}
		// The secret can be found: the task's file has it, on a tmpfs of its own.
		tmpfs := filepath.Join(n.State, "swarm", "files")
		if found := s.files(tmpfs); len(found) == 0 {
			t.Error("the secret is not found where it is")
		}
		s.nowhere("while tasks run", tmpfs)
		n.Kill()
		s.nowhere("without an agent", tmpfs)
		n.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return strings.Contains(cli("swarm", "status", "--json"), `"up"`) })
		s.nowhere("after the agent's death", tmpfs)
		for _, st := range m.Statuses("") {
			s.check("a status", []byte(st.String()))
		}
		cli("swarm", "leave")
		s.nowhere("after leaving", "")
		if _, err := os.Stat(tmpfs); !os.IsNotExist(err) {
			t.Errorf("the tmpfs of secrets is there after leaving: %v", err)
		}
		n.Check()
	})
}

// searcher looks for the secrets.
type searcher struct {
	t       *testing.T
	n       *nodetest.Node
	planted []string
}

// has are the planted texts in some bytes.
func (s *searcher) has(data []byte) (found []string) {
	for _, p := range s.planted {
		if bytes.Contains(data, []byte(p)) {
			found = append(found, p)
		}
	}
	return found
}

func (s *searcher) check(what string, data []byte) {
	s.t.Helper()
	if found := s.has(data); len(found) > 0 {
		s.t.Errorf("%s has %v", what, found)
	}
}

// files are those below a directory that have something planted; except is left out.
func (s *searcher) files(dir string, except ...string) (found []string) {
	s.t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what goes meanwhile is not there to be seen
		case slices.Contains(except, path):
			return filepath.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if n++; len(s.has(data)) > 0 {
			found = append(found, path)
		}
		return nil
	})
	if err != nil || n == 0 {
		s.t.Errorf("%s: %d files were read, %v", dir, n, err)
	}
	return found
}

// nowhere asserts that nothing planted is anywhere, but on the tmpfs of secrets.
func (s *searcher) nowhere(when, tmpfs string) {
	s.t.Helper()
	if found := s.files(s.n.Dir, tmpfs); len(found) > 0 {
		s.t.Errorf("%s: in %v", when, found)
	}
	if s.n.Pid() == 0 {
		return
	}
	for _, pid := range append(append(s.n.Processes("keeper"), s.n.Processes("nest")...), s.n.Pid()) {
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
			if err != nil {
				s.t.Error(err)
			}
			s.check(fmt.Sprintf("%s: %s of process %d", when, file, pid), data)
		}
	}
	for _, args := range [][]string{
		{"ps", "--all", "--json"},
		{"ps", "--all"},
		{"sandboxes", "--json"},
		{"swarm", "status", "--json"},
		{"images"},
		{"volume", "ls"},
		{"doctor"},
		{"config", "show"},
		{"events", "--since", "0", "--no-follow", "--json"},
	} {
		out, err := s.n.CLI(args...)
		if err != nil && args[0] != "doctor" {
			s.t.Errorf("%v: %v", args, err)
		}
		s.check(when+": "+strings.Join(args, " "), []byte(out))
	}
	var list []struct{ ID string }
	out, err := s.n.CLI("ps", "--all", "--json")
	if err == nil && strings.TrimSpace(out) != "" {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		s.t.Error(err)
	}
	for _, c := range list {
		for _, args := range [][]string{{"inspect", c.ID}, {"why", c.ID}, {"logs", c.ID}, {"debug", "plan", c.ID}} {
			out, err := s.n.CLI(args...)
			if args[0] == "inspect" && err != nil {
				s.t.Error(err)
			}
			s.check(when+": "+args[0], []byte(out+errorText(err)))
		}
	}
	s.check(when+": metrics", s.scrape())
	dump, err := s.n.CLI("debug", "dump", "--output", "-")
	if err != nil {
		s.t.Error(err)
	}
	z, err := gzip.NewReader(strings.NewReader(dump))
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || len(text) < 10_000 {
		s.t.Errorf("the dump: %d bytes, %v", len(text), err)
	}
	s.check(when+": debug dump", text)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// scrape scrapes as Prometheus does.
func (s *searcher) scrape() []byte {
	s.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.n.State, "control-http.sock"))
	}}}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://node/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || len(data) < 100 {
		s.t.Errorf("metrics: %s, %d bytes, %v", resp.Status, len(data), err)
	}
	return data
}
