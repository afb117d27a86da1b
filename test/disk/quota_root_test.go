package disk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// quotaRoot makes a file system with project quotas in a file, and mounts it.
func quotaRoot(t *testing.T, mkfs string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(mkfs)
	if err != nil {
		t.Skipf("%s is not installed", mkfs)
	}
	file := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(file)
	if err == nil {
		err = f.Truncate(600 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if out, err := exec.CommandContext(t.Context(), path, append(args, file)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	_ = exec.CommandContext(t.Context(), "modprobe", "loop").Run() // fails where the kernel has it built in
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop,prjquota", file, dir).CombinedOutput(); err != nil {
		t.Skipf("this kernel mounts no %s with project quotas: %s", mkfs, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestQuotaXFS and TestQuotaExt4: the file system stops a container at its disk limit, and it alone.
func TestQuotaXFS(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { quotas(t, quotaRoot(t, "mkfs.xfs", "-q")) })
}

func TestQuotaExt4(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		quotas(t, quotaRoot(t, "mke2fs", "-q", "-t", "ext4", "-O", "quota,project", "-E", "quotatype=prjquota"))
	})
}

func quotas(t *testing.T, dir string) {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Dir: filepath.Join(dir, "node")})
	image := n.Busybox(t)
	cli := func(args ...string) string {
		t.Helper()
		out, err := n.CLI(args...)
		if err != nil {
			t.Fatalf("longshore %s: %s, %v", strings.Join(args, " "), out, err)
		}
		return out
	}
	cli("pull", image)
	for name, flags := range map[string][]string{"limited": {"--disk", "16m"}, "mapped": {"--disk", "16m", "--userns", "private"}, "free": nil} {
		cli(append(append([]string{"run", "-d", "--name", name}, flags...), image, "sleep", "1000")...)
	}
	const fill = "dd if=/dev/zero of=/f bs=1M count=40"
	if out := cli("exec", "free", "sh", "-c", fill+" 2>&1"); !strings.Contains(out, "40+0 records out") {
		t.Errorf("without a limit: %s", out)
	}
	for _, name := range []string{"limited", "mapped"} {
		out, err := n.CLI("exec", name, "sh", "-c", fill+" 2>&1")
		if err == nil || !strings.Contains(out, "No space left") && !strings.Contains(out, "quota exceeded") {
			t.Errorf("%s wrote 40 MiB: %s, %v", name, out, err)
		}
		out = cli("exec", name, "df", "-k", "/")
		if !strings.Contains(out, fmt.Sprint(16<<10)) {
			t.Errorf("%s: df shows another size than 16 MiB: %s", name, out)
		}
		if out := cli("ps", "-s", "--filter", "name="+name); !strings.Contains(out, "1") {
			t.Errorf("ps: %s", out)
		}
	}
	// Root of the node's user namespace can take a file out of the project. It is killed when it is measured.
	helper := filepath.Join(dir, "escape")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(helper, self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"escapes", "cannot"} {
		args := []string{"run", "-d", "--name", name, "--disk", "16m", "-v", helper + ":/escape:ro"}
		if name == "cannot" {
			args = append(args, "--userns", "private")
		}
		cli(append(args, image, "sleep", "1000")...)
	}
	if out, err := n.CLI("exec", "--env", escapeEnv+"=1", "cannot", "/escape"); err == nil || !strings.Contains(out, "refused: operation not permitted") && !strings.Contains(out, "refused: invalid argument") {
		t.Errorf("in a user namespace: %s, %v", out, err)
	}
	cli("exec", "--env", escapeEnv+"=1", "escapes", "/escape")
	if out := cli("wait", "escapes"); strings.TrimSpace(out) != "137" {
		t.Errorf("it ended with %s", out)
	}
	if out := cli("why", "escapes"); !strings.Contains(out, "disk limit") {
		t.Errorf("why: %s", out)
	}
	for _, name := range []string{"limited", "mapped", "free", "escapes", "cannot"} {
		cli("rm", "-f", name)
	}
	n.Check()
}
