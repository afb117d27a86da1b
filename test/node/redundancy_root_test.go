package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestLostRedundancyIsTold: while limits of descriptors keep a keeper from another nest, check and doctor
// say so. An event and the metric tell of that, of a nest without a keeper, and of both ends. Containers
// can be started without a nest.
func TestLostRedundancyIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const metrics = "127.0.0.1:17947" // of this test's namespace
		ca := tlsconftest.New(t)
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n" + metricsConfig(t, ca, metrics)})
		image := n.Busybox(t)
		if out, err := n.CLI("run", "-d", "--name", "one", image, "sleep", "100000"); err != nil {
			t.Fatal(err, out)
		}
		told := func() (check, doctor string) {
			check, _ = n.CLI("check") // it fails when it has something to tell
			doctor, _ = n.CLI("doctor")
			return check, doctor
		}
		// events counts the events of redundancy that have a text.
		events := func(text string) (count int) {
			out, err := n.CLI("events", "--since", "0", "--no-follow")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "redundancy is ") && strings.Contains(line, text) {
					count++
				}
			}
			return count
		}
		metric := func(status string) bool {
			return strings.Contains(scrape(t, ca, "https://"+metrics+"/metrics", "s3cret"), fmt.Sprintf(`longshore_findings{name="redundancy",status=%q} 1`, status))
		}
		roottest.Eventually(t, "the metric tells that nothing is lost", func() bool { return metric("ok") })
		if n := events(""); n != 0 {
			t.Errorf("%d events of redundancy at first", n)
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
		roottest.Eventually(t, "an event and the metric tell that the nest is lost", func() bool { return events(exposed) == 1 && metric("warn") })
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
		roottest.Eventually(t, "an event and the metric tell that it is back", func() bool { return events("is ok") == 1 && metric("ok") })
		n.KillKeeper()
		if out, err := n.CLI("inspect", "--format", "{{.State.Running}}", "one"); err != nil || out != "true\n" {
			t.Errorf("the first container: %q, %v", out, err)
		}
		nest := n.Processes("nest")[0]
		limit(t, nest, 0)
		nodetest.KillTogether(t, n.Processes("keeper")...)
		const alone = "the nest has no keeper that answers"
		roottest.Eventually(t, "an event and the metric tell that the keeper is lost", func() bool { return events(alone) == 1 && metric("fail") })
		limit(t, nest, 1<<16)
		roottest.Eventually(t, "an event and the metric tell that there is a keeper again", func() bool { return events("is ok") == 2 && metric("ok") })
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
