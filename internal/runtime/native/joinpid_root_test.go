package native_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native"
)

// TestAPinnedPidNamespaceIsJoined: a container joins the pid namespace of another one by a file that pins it, and sees the other's
// processes in its /proc, also on kernels that mount no proc for another pid namespace than the mounter's.
func TestAPinnedPidNamespaceIsJoined(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		id, err := n.held(t.Context(), t, script("exec sleep 1000"))
		if err != nil {
			t.Fatal(err)
		}
		const pinned = "/run/pinned"
		if err := os.WriteFile(pinned, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", n.pidOf(t, id)), pinned, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(pinned, unix.MNT_DETACH) })
		for name, r := range map[string]*native.Runtime{"this kernel": n.runtime, "without pidns=": n.older(t)} {
			s := script("cat /proc/1/comm; test -d /proc/$$ && echo its own")
			at := slices.IndexFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace })
			s.Linux.Namespaces[at].Path = pinned
			if out := n.run(t.Context(), t, r, containers(), s); out != "sleep\nits own\n" {
				t.Errorf("%s: %q", name, out)
			}
		}
	})
}
