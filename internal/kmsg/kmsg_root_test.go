package kmsg_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/kmsg"
	"github.com/longshore/longshore/internal/roottest"
)

// The kernel log has the pids of its own namespace, and so must its reader: this test alone runs
// where it was started.
func TestVictimOfARealKill(t *testing.T) {
	if os.Getenv(roottest.Env) != "1" {
		t.Skipf("needs root and a real kernel: set %s=1", roottest.Env)
	}
	base, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		base, limit = "/sys/fs/cgroup", "memory.max"
	}
	path := roottest.Cgroup(t)
	dir := base + path
	inner := filepath.Join(dir, "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, limit), []byte("8388608"), 0o644); err != nil {
		t.Skipf("no memory limit can be set: %v", err)
	}
	// On v2 the log names only a cgroup with the controller.
	_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0o644)
	before := time.Now()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/busybox", "sh", "-c", "echo 0 > "+inner+"/cgroup.procs; x=0123456789abcdef; while :; do x=$x$x; done")
	if err := cmd.Run(); err == nil {
		t.Fatal("was not killed")
	}
	pid := cmd.Process.Pid
	for _, v := range kmsg.New(kmsg.Options{}).Victims(t.Context(), before) {
		if v.Memcg != path {
			continue
		}
		if v.Pid != pid || v.Victim != path+"/inner" {
			t.Errorf("pid %d, victim %s, want %d and %s/inner", v.Pid, v.Victim, pid, path)
		}
		if v.At.Before(before.Add(-time.Second)) || v.At.After(time.Now().Add(time.Second)) {
			t.Errorf("at %v, now %v", v.At, time.Now())
		}
		return
	}
	t.Error("the kernel log does not tell of the kill")
}
