package node

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestExecAsAnotherUserHasThatUsersRights has a row for each face that makes the container, each user of it, each user of the exec,
// with and without no_new_privs.
func TestExecAsAnotherUserHasThatUsersRights(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("users"))
		const ofRoot = "CapEff: 00000000a80425fb"
		const none = "CapEff: 0000000000000000"
		for _, user := range []int64{0, 1000} {
			for _, nnp := range []bool{false, true} {
				name := fmt.Sprintf("u%d-%v", user, nnp)
				args := []string{"run", "-d", "--name", name, "-u", fmt.Sprint(user)}
				if !nnp {
					args = append(args, "--new-privileges")
				}
				if _, err := n.CLI(append(args, image, "/bin/sleep", "1000")...); err != nil {
					t.Fatal(err)
				}
				cfg := nodetest.ContainerConfig(name, image, "/bin/sleep", "1000")
				cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{Value: user}, NoNewPrivs: nnp}
				inPod := pod.Run(t, cfg)
				for face, container := range map[string]string{"cli": name, "cri": inPod.ID} {
					for _, as := range []string{"", "0", "1000", "4711"} {
						want := none
						if as == "0" || as == "" && user == 0 {
							want = ofRoot
						}
						exec := []string{"exec", "--force"}
						if as != "" {
							exec = append(exec, "-u", as)
						}
						out, err := n.CLI(append(exec, container, "/bin/sh", "-c", "echo $(grep CapEff /proc/self/status); touch /tmp/f; [ $(id -u) != 0 ] || chown 5 /tmp/f; rm -f /tmp/f")...)
						if err != nil || strings.TrimSpace(out) != want {
							t.Errorf("%s, user %d, exec as %q, no_new_privs %v: %q, %v; want %q", face, user, as, nnp, out, err, want)
						}
					}
				}
				if _, err := n.CLI("rm", "-f", name); err != nil {
					t.Error(err)
				}
			}
		}
		pod.Remove(t)
		clean(t, n)
	})
}
