package kata

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnExecHasItsOwnUsersRights: user of the container, no_new_privs, and user of the exec, which is
// named in the request beside the process of the container, as Kata's policies have it.
func TestAnExecHasItsOwnUsersRights(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		etc := filepath.Join(a.root, "etc")
		if err := errors.Join(
			os.WriteFile(filepath.Join(etc, "passwd"), []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\n"), 0o644),
			os.WriteFile(filepath.Join(etc, "group"), []byte("root:x:0:\nwww-data:x:33:\n"), 0o644),
			os.Chmod(filepath.Join(a.root, "tmp"), 0o777),
		); err != nil {
			t.Fatal(err)
		}
		for _, uid := range []uint32{0, 33} {
			for _, nnp := range []bool{false, true} {
				process := func(script string) *katav1.Process {
					p := a.spec(script).GetProcess()
					p.User, p.NoNewPrivileges = &katav1.User{UID: uid, GID: uid}, nnp
					if uid != 0 { // as a shim sends it
						p.Capabilities.Effective, p.Capabilities.Permitted = nil, nil
					}
					return p
				}
				id := fmt.Sprintf("c%d%v", uid, nnp)
				spec := a.spec("")
				spec.Process = process("sleep 1000")
				spec.Linux.CgroupsPath = "/default/" + id
				a.run(t, id, spec)
				execs := 0
				nodetest.CheckExecUsers(t, "guest", fmt.Sprint(uid), nnp, nodetest.ExecUsers, func(as, script string) (string, error) {
					execs++
					exec := fmt.Sprintf("%s-x%d", id, execs)
					req := &katav1.ExecProcessRequest{ContainerId: id, ExecId: exec, Process: process(script)}
					if as != "" {
						req.StringUser = &katav1.StringUser{Uid: as}
					}
					if _, err := a.ExecProcess(t.Context(), req); err != nil {
						return "", err
					}
					out := a.stdout(t, id, exec)
					if code := a.wait(t, id, exec); code != 0 {
						return out, fmt.Errorf("it ended with %d: %s", code, a.stderr(t, id, exec))
					}
					return out, nil
				})
				a.remove(t, id)
			}
		}
	})
}
