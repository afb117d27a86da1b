package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// probeArg makes the test's program an attacker, inside a container or as another user.
// The next arguments are a probe's name and its arguments.
const probeArg = "attack-probe"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == probeArg {
		os.Exit(runProbe(os.Args[2], os.Args[3:]))
	}
	if sleeptest.Main(os.Args) {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// probe is an attack by system calls. The same program makes it inside a container,
// where it must fail, and as the host's root, where it must succeed, which is the
// control.
type probe struct {
	name string
	run  func(args []string) result
	// outside says why there is no control as the host's root, if there is none.
	outside string
	// granted are actors with the capabilities for this attack, so it is not tried as them.
	// docs/security.md lists these capabilities.
	granted []actor
}

func probes() []probe {
	return append(append(fileProbes(), callProbes()...), initProbes()...)
}

func probeNamed(name string) (probe, bool) {
	for _, p := range append(append(append(probes(), processProbes()...), limitProbes()...), append(append(append(append(append(helperProbes(), overlayProbes()...), copyProbes()...), sharedProbes()...), kernelBugProbes()...), probe{name: "watch newcomers", run: watch})...) {
		if p.name == name {
			return p, true
		}
	}
	return probe{}, false
}

func runProbe(name string, args []string) int {
	p, ok := probeNamed(name)
	if !ok {
		fmt.Fprintf(os.Stderr, "no probe %q\n", name)
		return 2
	}
	out, err := json.Marshal(p.run(args))
	if err != nil {
		return 3
	}
	_, _ = os.Stdout.Write(append(out, '\n'))
	return 0
}
