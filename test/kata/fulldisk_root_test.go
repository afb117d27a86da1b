package kata

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAGuestWhoseStateIsFull: with no byte, or no inode, left in the agent's directory, a running
// container ends as usual, with its status; a new container, and maybe an exec, is refused with the
// kernel's error; a container can be removed; and all works once there is room.
func TestAGuestWhoseStateIsFull(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for name, options := range map[string]string{"bytes": "size=4m", "inodes": "size=64m,nr_inodes=400"} {
			t.Run(name, func(t *testing.T) {
				state := t.TempDir()
				if err := unix.Mount("tmpfs", state, "tmpfs", 0, options+",mode=700"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
				a := start(t, "--state", filepath.Join(state, "state"))
				a.sandbox(t)
				a.run(t, "ends", a.spec("read line; exit 7"))
				a.run(t, "stays", a.spec("sleep 1000"))
				exec := func(id string) (int32, error) {
					p := a.spec("exit 9").GetProcess()
					if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "stays", ExecId: id, Process: p}); err != nil {
						return 0, err
					}
					return a.wait(t, "stays", id), nil
				}
				free := takeAll(t, state)
				code, err := exec("full")
				if err == nil && code != 9 || err != nil && !strings.Contains(err.Error(), "no space left") {
					t.Errorf("an exec: %d, %v", code, err)
				}
				t.Logf("an exec: %d, %v", code, err)
				_, err = a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "refused", ExecId: "refused", OCI: a.spec("exit 3")})
				if err == nil || !strings.Contains(err.Error(), "no space left") {
					t.Errorf("a new container: %v", err)
				}
				if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "ends", ExecId: "ends", Data: []byte("go\n")}); err != nil {
					t.Fatal(err)
				}
				if got := a.wait(t, "ends", "ends"); got != 7 {
					t.Errorf("the container ended with %d, want 7", got)
				}
				a.remove(t, "ends")
				free()
				if code, err := exec("after"); err != nil || code != 9 {
					t.Errorf("an exec once there is room: %d, %v", code, err)
				}
				a.run(t, "refused", a.spec("exit 3"))
				if got := a.wait(t, "refused", "refused"); got != 3 {
					t.Errorf("a container made once there is room ended with %d, want 3", got)
				}
				a.remove(t, "refused")
			})
		}
	})
}

// takeAll takes all bytes of a file system, or all inodes of one with more than 5 MiB, and returns
// their release.
func takeAll(t *testing.T, at string) (free func()) {
	t.Helper()
	dir := filepath.Join(at, "filler")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "bytes"))
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
		if st, serr := f.Stat(); serr == nil && st.Size() >= 5<<20 {
			break // there are inodes to take, not bytes
		}
	}
	_ = f.Close()
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
