package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAPodInAUserNamespace: with kubelet's hostUsers: false, root of its containers is nobody
// outside, is root over the pod's namespaces, and sees image, volumes and devices as its own.
func TestAPodInAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, runtime := range []string{"native", "crun", "runc"} {
			t.Run(runtime, func(t *testing.T) { podInUsers(t, runtime) })
		}
	})
}

const podRoot = 524288

func podInUsers(t *testing.T, runtime string) {
	n := nodetest.Start(t, nodetest.Options{Runtime: runtime})
	if err := os.Chmod(n.Dir, 0o711); err != nil { // as /run is
		t.Fatal(err)
	}
	image := n.Busybox(t)
	ids := []*runtimeapi.IDMapping{{HostId: podRoot, ContainerId: 0, Length: 65536}}
	cfg := n.PodConfig("users")
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	cfg.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "1024", "kernel.shm_rmid_forced": "1"}
	pod := n.RunPod(t, cfg)
	volume := filepath.Join(n.Dir, "volume")
	if err := os.MkdirAll(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "secret"), []byte("seen"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", `
echo "id $(id -u)"; echo map $(cat /proc/self/uid_map)
echo "image $(stat -c %u /bin/busybox)"; touch /made && echo "root $(stat -c %u /made)"
echo "volume $(cat /data/secret) $(stat -c %u /data/secret)"; touch /data/made
httpd -p 80 -h /tmp && echo "port bound"
echo "shm $(touch /dev/shm/x && stat -c %u /dev/shm)"; echo "null $(echo x > /dev/null && echo yes) $(stat -c %u /dev/null)"
echo "forced $(cat /proc/sys/kernel/shm_rmid_forced)"
echo "plain $(cat /plain/f)"
echo "init $(tr '\0' ' ' < /proc/1/cmdline)"
mknod /tmp/sda b 8 0 2>/dev/null && echo made; echo 1 > /proc/sys/vm/drop_caches 2>/dev/null && echo wrote; exec sleep 1000`)
	c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: cfg.Linux.SecurityContext.NamespaceOptions, Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}}
	// crun 1.8 opens the user namespace of its child for such a mount, at times
	// before the child is in it, and is then refused (EPERM).
	mapped := runtime == "native"
	if mapped {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: volume, UidMappings: ids, GidMappings: ids}}
	}
	// A volume that is below a directory that the container's root may not search.
	plain := filepath.Join(volume, "inner")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plain, "f"), []byte("below"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/plain", HostPath: plain})
	// The volumes that its image declares, under a root that is read-only.
	v := nodetest.ContainerConfig("v", volumesImage(t, n), "/bin/sh", "-c", "stat -c '%u' /data /data/content /made/here; echo changed > /data/content; cat /data/content; touch /made/here/x && echo made; touch /x 2>&1; echo end")
	v.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: cfg.Linux.SecurityContext.NamespaceOptions, ReadonlyRootfs: true}
	declared := pod.Run(t, v)
	declared.WaitExited(t)
	if log := strings.Join(logTexts(declared.ReadLog(t)), " "); log != "33 33 0 changed made touch: /x: Read-only file system end" {
		t.Errorf("declared volumes: %s", log)
	}
	app := pod.Run(t, c)
	said := func(text string) bool { return strings.Contains(app.ReadLog(t), text) }
	nodetest.Eventually(t, "the program has told all", func() bool { return said(" init ") })
	for _, want := range []string{
		"F id 0\n", fmt.Sprintf("F map 0 %d 65536\n", podRoot), "F image 0\n", "F root 0\n", "F volume seen 0\n", "F shm 0\n", "F null yes 0\n", "F forced 1\n", "F plain below\n", "F port bound\n",
	} {
		if strings.Contains(want, "null") && (runtime != "native" || !tmpfsMapsOwners(t)) || !mapped && strings.Contains(want, "volume") {
			continue // a device is nobody's, and works
		}
		if !said(want) {
			t.Errorf("no %q in\n%s", want, app.ReadLog(t))
		}
	}
	for _, bad := range []string{"made\n", "wrote\n"} {
		if said("F " + bad) {
			t.Errorf("it %s", bad)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(volume, "made"), &st); mapped && (err != nil || st.Uid != 0) {
		t.Errorf("on the volume its file is %d's, %v", st.Uid, err)
	}
	// An unprivileged program in the same user namespace writes to its streams.
	u := nodetest.ContainerConfig("u", image, "/bin/sh", "-c", "echo out > /dev/stdout; id -u; readlink /proc/self/ns/user; readlink /proc/self/ns/net")
	u.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: cfg.Linux.SecurityContext.NamespaceOptions, RunAsUser: &runtimeapi.Int64Value{Value: 1000}}
	unprivileged := pod.Run(t, u)
	unprivileged.WaitExited(t)
	r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: app.ID, Cmd: []string{"/bin/sh", "-c", "id -u; readlink /proc/self/ns/user; readlink /proc/self/ns/net"}, Timeout: 60})
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(r.Stdout))
	if len(f) != 3 || f[0] != "0" {
		t.Fatalf("exec: %q, %q", r.Stdout, r.Stderr)
	}
	for _, want := range []string{"out", "1000", f[1], f[2]} {
		if text := unprivileged.ReadLog(t); !strings.Contains(text, "F "+want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if host, _ := os.Readlink("/proc/self/ns/user"); host == f[1] {
		t.Error("it is in the host's user namespace")
	}
	// The program was let through, and nobody is any more.
	for _, dir := range []string{n.State, filepath.Join(n.State, "bundles"), filepath.Join(n.State, "bundles", app.ID)} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Mode&0o7777 != 0o700 {
			t.Errorf("%s has mode %o, %v", dir, st.Mode, err)
		}
		if _, err := unix.Getxattr(dir, "system.posix_acl_access", nil); err != unix.ENODATA {
			t.Errorf("%s has an access control list: %v", dir, err)
		}
	}
	// The agent comes back to it.
	n.Kill()
	n.Up()
	if st := app.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after a restart: %v", st)
	}
	n.Check()
	pod.Remove(t)
	n.Check()
}

// tmpfsMapsOwners reports whether the kernel can show a device of ours as its
// container's: since Linux 6.3. Before that it is nobody's, and works.
func tmpfsMapsOwners(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 3
}

// logTexts are the texts of a log's records.
func logTexts(log string) (texts []string) {
	for line := range strings.Lines(log) {
		if f := strings.SplitN(strings.TrimSpace(line), " ", 4); len(f) == 4 {
			texts = append(texts, f[3])
		}
	}
	return texts
}
