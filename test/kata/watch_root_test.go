package kata

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestWatchedStorages: containers see the changes of a directory that the host shares, in a
// copy that they share; it goes with the last of them. A source that is too large is mounted.
func TestWatchedStorages(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		a := start(t)
		a.sandbox(t)
		put := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(dir+name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		link := func(target, name string) {
			t.Helper()
			if err := os.Symlink(target, dir+"/tmp"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(dir+"/tmp", dir+name); err != nil {
				t.Fatal(err)
			}
		}
		put("/config/..one/key", "old")
		link("..one", "/config/..data")
		link("..data/key", "/config/key")
		put("/file", "old")
		for i := range 20 {
			put(fmt.Sprintf("/many/f%d", i), "many")
		}
		storage := func(name string) *katav1.Storage {
			return &katav1.Storage{Driver: "watchable-bind", Source: dir + "/" + name, Fstype: "bind", Options: []string{"bind", "ro"}, MountPoint: dir + "/shared/watchable/" + name}
		}
		create := func(id, script string) {
			t.Helper()
			spec, list := a.spec(script), []*katav1.Storage{storage("config"), storage("file"), storage("many")}
			for _, s := range list {
				spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: "/etc/" + filepath.Base(s.GetSource()), Type: "bind", Source: s.GetMountPoint(), Options: []string{"rbind", "ro"}})
			}
			if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Storages: list}); err != nil {
				t.Fatalf("CreateContainer: %v", err)
			}
			if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
				t.Fatalf("StartContainer: %v", err)
			}
		}
		see := "cat /etc/config/key /etc/file /etc/many/f19; until [ $(cat /etc/config/key) = new ] && [ $(cat /etc/file) = new ]; do :; sleep 0.1; done; cat /etc/config/key /etc/file; ls -A /etc/config; touch /etc/config/x"
		create("c1", see)
		create("c2", "sleep 1000")
		put("/config/..two/key", "new")
		link("..two", "/config/..data")
		if err := os.RemoveAll(dir + "/config/..one"); err != nil {
			t.Fatal(err)
		}
		put("/file", "new")
		if got, want := a.stdout(t, "c1", "c1"), "oldoldmanynewnew..data\n..two\nkey\n"; got != want {
			t.Errorf("the container saw %q, want %q", got, want)
		}
		if got := a.stderr(t, "c1", "c1"); !strings.Contains(got, "Read-only") {
			t.Errorf("the container wrote: %q", got)
		}
		put("/config/..two/large", strings.Repeat("x", 2<<20))
		nodetest.Eventually(t, "what has become too large is mounted", func() bool {
			_, err := os.Stat(dir + "/shared/watchable/config/..two/large")
			return err == nil
		})
		mounted := func() int {
			t.Helper()
			b, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(string(b), dir+"/shared/watchable")
		}
		a.remove(t, "c1")
		if n := mounted(); n != 3 { // the tmpfs and two that are too large
			t.Errorf("with one container %d mounts", n)
		}
		if _, err := a.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c2", Signal: 9}); err != nil {
			t.Error(err)
		}
		a.remove(t, "c2")
		if n := mounted(); n != 0 {
			t.Errorf("without containers %d mounts", n)
		}
		if b, err := os.ReadFile(dir + "/many/f19"); err != nil || string(b) != "many" {
			t.Errorf("the host's file is %q, %v", b, err)
		}
		for what, bad := range map[string]*katav1.Storage{
			"nothing to copy": storage("nothing"), "a directory of another name": {Driver: "watchable-bind", Source: dir + "/config", MountPoint: dir + "/other/config"},
		} {
			_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c3", ExecId: "c3", OCI: a.spec("true"), Storages: []*katav1.Storage{bad}})
			if status.Code(err) != codes.Internal || mounted() != 0 {
				t.Errorf("%s: %v, %d mounts", what, err, mounted())
			}
		}
	})
}

// TestAnAgentThatIsToldToEnd: SIGTERM leaves no container and no mount.
func TestAnAgentThatIsToldToEnd(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(dir+"/source", 0o755); err != nil {
			t.Fatal(err)
		}
		mounts := func() string {
			t.Helper()
			b, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		before := strings.Count(mounts(), "\n")
		a := start(t)
		a.sandbox(t)
		list := []*katav1.Storage{
			{Driver: "ephemeral", Fstype: "tmpfs", MountPoint: dir + "/tmp", Shared: true},
			{Driver: "bind", Source: dir + "/source", MountPoint: dir + "/tmp/below"}, // on the first one
			{Driver: "watchable-bind", Source: dir + "/source", MountPoint: dir + "/watchable/w"},
		}
		if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: a.spec("sleep 1000"), Storages: list}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c1"}); err != nil {
			t.Fatal(err)
		}
		if now := mounts(); !strings.Contains(now, dir+"/tmp/below") || !strings.Contains(now, dir+"/watchable") {
			t.Errorf("the mounts are\n%s", now)
		}
		gone := a.gone(t)
		if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-gone
		if now := mounts(); strings.Count(now, "\n") != before {
			t.Errorf("the agent has left mounts:\n%s", now)
		}
		if left := nodetest.Pair(""); len(left) > 0 {
			t.Errorf("processes are left: %d", left)
		}
	})
}
