package sleep_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// Programs in several languages sleep and wake again and again. Their memory must be the same, and at least nine tenths of it must be
// free in their sleep. LONGSHORE_SLEEP_CYCLES is the number of cycles of each program.
func TestPythonKeepsItsMemory(t *testing.T) { keepsMemory(t, "python3", "testdata/server.py", "64") }

func TestNodeKeepsItsMemory(t *testing.T) { keepsMemory(t, "node", "testdata/server.js", "64") }

func TestJavaKeepsItsMemory(t *testing.T) {
	keepsMemory(t, "java", "-Xmx512m", "testdata/Server.java", "64")
}

func TestGoKeepsItsMemory(t *testing.T) {
	keepsMemory(t, os.Args[0], sleeptest.WorkArg, "127.0.0.1:0", "64")
}

func keepsMemory(t *testing.T, program string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed: %v", program, err)
	}
	cycles := 2
	if s := os.Getenv("LONGSHORE_SLEEP_CYCLES"); s != "" {
		if _, err := fmt.Sscan(s, &cycles); err != nil {
			t.Fatal(err)
		}
	}
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t, append([]string{path}, args...)...)
		sum := b.request(sleeptest.Sum)
		var first []time.Duration
		for i := range cycles {
			awake := b.anonymous()
			slept := b.sleep()
			asleep := b.anonymous()
			if asleep*10 > awake {
				t.Errorf("cycle %d: asleep it has %d of %d KiB; %+v", i, asleep>>10, awake>>10, slept)
			}
			begun := time.Now()
			done := b.wake()
			b.request("one")
			first = append(first, time.Since(begun))
			if got := b.request(sleeptest.Sum); got != sum {
				t.Fatalf("cycle %d: the memory has the sum %s, want %s", i, got, sum)
			}
			w := <-done
			if w.Err != nil {
				t.Fatal(w.Err)
			}
			if i == 0 {
				t.Logf("awake %d MiB, asleep %d MiB, stored %d MiB, %+v; %+v", awake>>20, asleep>>20, slept.Stored>>20, slept.Resident, w)
			}
		}
		t.Logf("first answers after %v", first)
	})
}
