package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestLostRedundancyIsTold keeps a keeper from getting another nest, by a limit of descriptors: check
// and doctor say so until it has one, and containers can be started meanwhile.
func TestLostRedundancyIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"})
		image := n.Busybox(t)
		if out, err := n.CLI("run", "-d", "--name", "one", image, "sleep", "100000"); err != nil {
			t.Fatal(err, out)
		}
		told := func() (check, doctor string) {
			check, _ = n.CLI("check") // it fails when it has something to tell
			doctor, _ = n.CLI("doctor")
			return check, doctor
		}
		const exposed = "has lost its nest and could not start another one"
		if check, doctor := told(); strings.Contains(check+doctor, exposed) {
			t.Fatalf("this is told of a whole pair: %s%s", check, doctor)
		}
		keeper := n.Processes("keeper")[0]
		limit(t, keeper, 0)
		nodetest.KillTogether(t, n.Processes("nest")...)
		roottest.Eventually(t, "check and doctor tell that the nest is lost", func() bool {
			check, doctor := told()
			return strings.Contains(check, exposed) && strings.Contains(doctor, exposed)
		})
		if out, err := n.CLI("run", "--name", "two", image, "sh", "-c", "echo works"); err != nil || out != "works\n" {
			t.Errorf("a container started meanwhile: %q, %v", out, err)
		}
		limit(t, keeper, 1<<16)
		roottest.Eventually(t, "the keeper gets a nest when it can", func() bool {
			check, doctor := told()
			return !strings.Contains(check+doctor, exposed)
		})
		if !slices.Contains(n.Processes("nest"), keeper) {
			t.Errorf("the keeper %d became no nest; nests are %v", keeper, n.Processes("nest"))
		}
		n.KillKeeper()
		if out, err := n.CLI("inspect", "--format", "{{.State.Running}}", "one"); err != nil || out != "true\n" {
			t.Errorf("the first container: %q, %v", out, err)
		}
		n.Check()
	})
}

// limit lets a process open no descriptor beyond a number.
func limit(t *testing.T, pid int, most uint64) {
	t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		t.Fatal(err)
	}
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil {
		t.Fatal(err)
	}
	now.Cur = min(most, now.Max)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &now, nil); err != nil {
		t.Fatal(err)
	}
}
