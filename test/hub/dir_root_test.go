package hub

import (
	"bytes"
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

// TestAHubWritesBelowItsDirectoryAlone: a hub runs where only its directory can be written. All files that it
// has open for writing, all its sockets, and a restored database are below it.
func TestAHubWritesBelowItsDirectoryAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := filepath.Join(nodetest.Bin(t), "longshore-hub")
		work, err := os.MkdirTemp("/run", "hub-") // on a tmpfs of the test's own: it cannot be removed below
		if err != nil {
			t.Fatal(err)
		}
		dir, fresh, passphrase, backup := work+"/hub", work+"/fresh", work+"/passphrase", work+"/hub/backup"
		if err := os.WriteFile(passphrase, []byte("a passphrase of tests\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{dir, fresh} {
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=0700"); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{dir, fresh} {
			if err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
				t.Fatal(err)
			}
		}
		command := func(args ...string) (string, error) {
			cmd := exec.CommandContext(t.Context(), bin, args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			return out.String(), err
		}
		serve := func(at string, more ...string) []string {
			return append([]string{"serve", "--dir", at, "--passphrase-file", passphrase, "--listen", "127.0.0.1:2377"}, more...)
		}

		// The rest cannot be written: a socket elsewhere is refused.
		if out, err := command(serve(dir, "--socket", work+"/hub.sock")...); err == nil || !strings.Contains(out, "read-only file system") {
			t.Errorf("with a socket elsewhere: %v, %s", err, out)
		}

		cmd := exec.CommandContext(t.Context(), bin, serve(dir)...)
		var log bytes.Buffer
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			if _ = cmd.Wait(); t.Failed() {
				t.Logf("the hub's log:\n%s", log.String())
			}
		}()
		roottest.Eventually(t, "the hub answers", func() bool {
			_, err := command("--dir", dir, "token")
			return err == nil
		})
		if out, err := command("--dir", dir, "secrets", "create", "key", passphrase); err != nil {
			t.Errorf("a secret: %v, %s", err, out)
		}
		if out, err := command("nodes", "--dir", dir); err != nil {
			t.Errorf("nodes: %v, %s", err, out)
		}
		if out, err := command("--dir", fresh, "nodes"); err == nil || !strings.Contains(out, "does not answer") {
			t.Errorf("nodes of another directory: %v, %s", err, out)
		}
		written := writable(t, cmd.Process.Pid)
		below := 0
		for _, path := range written {
			if strings.HasPrefix(path, dir+"/") {
				below++
			} else {
				t.Errorf("the hub writes %s", path)
			}
		}
		if below < 3 { // the lock, the database and its log
			t.Errorf("open for writing: %q; the test looks in the wrong place", written)
		}
		sockets := listening(t)
		if len(sockets) != 3 { // operators', and two of etcd's
			t.Errorf("sockets: %q", sockets)
		}
		for _, path := range sockets {
			if !strings.HasPrefix(path, dir+"/") {
				t.Errorf("the hub listens at %q", path)
			}
		}

		if out, err := command("backup", backup, "--socket", dir+"/hub.sock"); err != nil {
			t.Fatalf("backup: %v, %s", err, out)
		}
		if out, err := command("restore", backup, "--dir", fresh); err != nil {
			t.Fatalf("restore into a mount point: %v, %s", err, out)
		}
		if names := names(t, fresh); fmt.Sprint(names) != "[etcd lock]" {
			t.Errorf("restored: %q", names)
		}
	})
}

// names returns the names of a directory's entries.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// writable returns the regular files that a process has open for writing.
func writable(t *testing.T, pid int) (paths []string) {
	t.Helper()
	at := fmt.Sprintf("/proc/%d/", pid)
	for _, fd := range names(t, at+"fd") {
		path, err := os.Readlink(at + "fd/" + fd)
		info, err2 := os.ReadFile(at + "fdinfo/" + fd)
		if err != nil || err2 != nil || !strings.HasPrefix(path, "/") {
			continue
		}
		if st, err := os.Stat(at + "fd/" + fd); err != nil || !st.Mode().IsRegular() {
			continue
		}
		var position, flags int
		if _, err := fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &position, &flags); err != nil {
			t.Fatal(err)
		}
		if flags&unix.O_ACCMODE != unix.O_RDONLY {
			paths = append(paths, path)
		}
	}
	return paths
}

// listening returns the names of the unix sockets of the test's network namespace at which a process listens.
func listening(t *testing.T) (paths []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == "00010000" {
			paths = append(paths, strings.Join(f[7:], " "))
		}
	}
	return paths
}
