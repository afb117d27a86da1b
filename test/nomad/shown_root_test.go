package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestDevicesByTheirCDINames: devices are as a vendor's file says, in a user namespace too.
func TestDevicesByTheirCDINames(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		const file = `{"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits": {
			"env": ["GPU=nought"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero"}]}}]}`
		if err := os.WriteFile(filepath.Join(dir, "gpu.json"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newRigOn(t, nodetest.Options{Config: fmt.Sprintf("cdi_dirs = [%q]", dir)}, map[string]any{"volumes": map[string]any{"enabled": true}})
		const look = "echo $GPU; stat -c %t:%T /dev/gpu0; head -c 3 /dev/gpu0 | wc -c"
		want := []string{"nought\n1:5\n3\n"}
		r.answers([]asks{
			{name: "gpu", config: map[string]any{"cdi_devices": []string{"example.com/gpu=0"}}, script: look, want: want},
			{name: "mapped", config: map[string]any{"cdi_devices": []string{"example.com/gpu=0"}, "userns_mode": "auto"}, script: look, want: want},
		})
		none := r.given("none", "true", map[string]any{"cdi_devices": []string{"example.com/gpu=7"}})
		if _, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: none}); err == nil || !strings.Contains(err.Error(), "example.com/gpu=7") {
			t.Errorf("a device that is not there: %v", err)
		}
		r.nothingLeft()
	})
}

// TestMountsReachAsFarAsTheyShould: a later mount is seen on the other side as a volume's
// propagation says.
func TestMountsReachAsFarAsTheyShould(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, map[string]any{"allow_caps": []string{"all"}})
		host := t.TempDir()
		if err := syscall.Mount("tmpfs", host, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(host, syscall.MNT_DETACH) })
		if err := syscall.Mount("", host, "", syscall.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{"private/sub", "in/sub", "both/sub", "both/own"} {
			if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		const script = `until test -e /in/sub/file; do sleep 0.05; done
			test -e /private/sub/file || echo apart; test -e /both/sub/file && echo both
			mount -t tmpfs x /both/own && touch /both/own/mine; mount -t tmpfs x /in/sub && touch /in/sub/mine; echo ready; sleep 1000`
		task := r.given("volumes", script, map[string]any{"cap_add": []string{"SYS_ADMIN"}})
		task.Mounts = []*nomaddriver.Mount{
			{TaskPath: "/private", HostPath: host + "/private", PropagationMode: "private"},
			{TaskPath: "/in", HostPath: host + "/in", PropagationMode: "host-to-task"},
			{TaskPath: "/both", HostPath: host + "/both", PropagationMode: "bidirectional"},
		}
		r.start(task)
		for _, d := range []string{"private", "both", "in"} {
			sub := filepath.Join(host, d, "sub")
			if err := syscall.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(r.dir, allocID, "alloc/logs/volumes.stdout.0")
		r.eventuallyIn(file, "ready")
		if out, err := os.ReadFile(file); err != nil || string(out) != "apart\nboth\nready\n" {
			t.Errorf("the task says %q, %v", out, err)
		}
		if _, err := os.Stat(filepath.Join(host, "both/own/mine")); err != nil {
			t.Errorf("what the task has mounted in a bidirectional volume: %v", err)
		}
		if _, err := os.Stat(filepath.Join(host, "in/sub/mine")); err == nil {
			t.Error("what the task has mounted in a host-to-task volume is seen outside")
		}
		r.destroy(task)
		r.nothingLeft()
	})
}
