package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/oci"
)

// probeEnv makes TestCallProbe print the answers to some system calls.
const probeEnv = "LONGSHORE_CALL_PROBE"

// TestCallProbe runs in a container of the test below.
func TestCallProbe(t *testing.T) {
	if os.Getenv(probeEnv) == "" {
		t.Skip("it is what another test runs in a container")
	}
	for _, nr := range []uintptr{unix.SYS_GETPID, unix.SYS_KEXEC_LOAD, 600, 0x7000} {
		_, _, err := unix.Syscall(nr, 0, 0, 0)
		fmt.Printf("%d: %d\n", nr, err)
	}
	os.Exit(0)
}

// TestCallsOfTomorrowAreAnsweredAsUnderRunc: with the default profile a call that no kernel has yet is unknown, and one that the profile
// forbids is forbidden.
func TestCallsOfTomorrowAreAnsweredAsUnderRunc(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		self, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = os.WriteFile(n.root+"/probe", self, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d: 0\n%d: %d\n600: %d\n%d: %d\n", unix.SYS_GETPID, unix.SYS_KEXEC_LOAD, unix.EPERM, unix.ENOSYS, 0x7000, unix.ENOSYS)
		probe := func() *specs.Spec {
			s := script("")
			s.Process.Args, s.Process.Env = []string{"/probe", "-test.run", "^TestCallProbe$"}, []string{probeEnv + "=1"}
			if err := ocispec.DefaultSeccomp(s); err != nil {
				t.Fatal(err)
			}
			return s
		}
		if out := n.output(t, probe()); out != want {
			t.Errorf("native: %q, want %q", out, want)
		}
		path, err := exec.LookPath("runc")
		if err != nil {
			t.Skipf("nothing to compare with: %v", err)
		}
		runc, err := oci.New(oci.Options{Name: "runc", Path: path, Root: "/run/r", SocketDir: "/run/c", Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups})
		if err != nil {
			t.Fatal(err)
		}
		if out := n.run(t.Context(), t, runc, containers(), probe()); out != want {
			t.Errorf("runc: %q, want %q", out, want)
		}
	})
}
