package kata

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/cdi"
)

// TestDevicesByCDI: a container gets the edits of the machine's files for the devices of its annotations, or of
// its variable where that is allowed. The agent waits for late files.
func TestDevicesByCDI(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	dir := filepath.Join(t.TempDir(), "cdi") // which is not there yet
	create := func(id string, annotations map[string]string, env ...string) (string, error) {
		s := specOf(t, "cat")
		s.Annotations, s.Process.Env = annotations, env
		if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: s}); err != nil {
			return "", err
		}
		if _, err := r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
			return "", err
		}
		ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), core.Key(id))
		if err != nil {
			return "", err
		}
		got := r.node.Supervisor.Process(core.Ref{Container: ct.ID, Process: core.Main}).Spec.Env
		return strings.Join(slices.DeleteFunc(got, func(v string) bool { return !strings.HasPrefix(v, "GPU=") }), " "), nil
	}
	gpu := map[string]string{"cdi.k8s.io/a": "vendor.com/gpu=0"}
	r.face.o.CDI = guest.CDI{Dir: cdi.Dir(dir), Wait: time.Minute}
	late := make(chan error, 1)
	go func() {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "x"), []byte(`{"kind":"vendor.com/gpu","devices":[{"name":"0","containerEdits":{"env":["GPU=0"]}}]}`), 0o600)
		}
		if err == nil {
			err = os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "vendor.json"))
		}
		late <- err
	}()
	if got, err := create("late", gpu); err != nil || got != "GPU=0" {
		t.Errorf("a file that is late: %q, %v", got, err)
	}
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	if _, err := create("other", map[string]string{"cdi.k8s.io/a": "vendor.com/gpu=7"}); err == nil || !strings.Contains(err.Error(), "others of its kind") {
		t.Errorf("a device that the vendor does not have is waited for, or given: %v", err)
	}
	pod := map[string]string{"cdi.k8s.io/a": "vendor.com/gpu=0", "io.katacontainers.pkg.oci.container_type": "pod_sandbox"}
	if got, err := create("pod", pod); err != nil || got != "" {
		t.Errorf("the pod's own container: %q, %v", got, err)
	}
	if got, err := create("hidden", nil, "VISIBLE_CDI_DEVICES=vendor.com/gpu=0"); err != nil || got != "" {
		t.Errorf("by a variable that is not looked at: %q, %v", got, err)
	}
	r.face.o.CDI.Visible = true
	if got, err := create("visible", nil, "VISIBLE_CDI_DEVICES=vendor.com/gpu=0"); err != nil || got != "GPU=0" {
		t.Errorf("by a variable: %q, %v", got, err)
	}
	if _, err := create("wrong", nil, "VISIBLE_CDI_DEVICES=gpu"); err == nil {
		t.Error("a variable that names no device was taken")
	}
	r.face.o.CDI.Wait = time.Millisecond
	if _, err := create("never", map[string]string{"cdi.k8s.io/a": "vendor.com/none=0"}); err == nil || !strings.Contains(err.Error(), "vendor.com/none=0") {
		t.Errorf("a kind that no file has: %v", err)
	}
}
