package attack

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
)

func attempts() []attempt {
	var all []attempt
	for _, more := range [][]attempt{containerAttempts(), limitAttempts(), holeAttempts(), hostUserAttempts(), jobAttempts(), registryAttempts(), clientAttempts(), dockerAttempts(), overlayAttempts(), moduleAttempts(), requestAttempts(), leftAttempts(), hubAttempts(), sharedAttempts(), sleepAttempts(), egressAttempts()} {
		all = append(all, more...)
	}
	return slices.DeleteFunc(all, func(a attempt) bool { return a.long && rounds() == 1 })
}

// TestAttack makes every attempt on a node as it is built, and ends with the
// count of each actor.
func TestAttack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		count := newTally()
		try := func(t *testing.T, w *world, a attempt) {
			r := a.run(t, w)
			if fault := count.add(a.actor, a.name, r); fault != "" {
				t.Error(fault)
			}
			t.Log(r)
		}
		t.Run("together", func(t *testing.T) {
			w := newWorld(t, "")
			for _, a := range attempts() {
				if !a.alone {
					t.Run(fmt.Sprintf("%s/%s", a.actor, a.name), func(t *testing.T) { try(t, w, a) })
				}
			}
			w.Check()
		})
		for _, a := range attempts() {
			if a.alone {
				t.Run(fmt.Sprintf("%s/%s", a.actor, a.name), func(t *testing.T) { try(t, newWorld(t, ""), a) })
			}
		}
		summary, err := count.verdict()
		fmt.Printf("attack suite:\n%s", summary) // the log of a passing test is not shown
		if err != nil {
			t.Error(err)
		}
	})
}

// TestControls makes every attempt that a single defence stops against a build without
// that defence, where the attempt must succeed.
func TestControls(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var defences []weaken.Defence
		by := map[weaken.Defence][]attempt{}
		for _, a := range attempts() {
			if a.weak == "" {
				continue
			}
			if by[a.weak] == nil {
				defences = append(defences, a.weak)
			}
			by[a.weak] = append(by[a.weak], a)
		}
		for _, d := range defences {
			t.Run(string(d), func(t *testing.T) {
				w := newWorld(t, d)
				for _, a := range by[d] {
					t.Run(a.name, func(t *testing.T) {
						if r := a.run(t, w); r.Outcome != reached {
							t.Errorf("without %s it is %s: the attack attacks nothing", d, r)
						} else {
							t.Log(r)
						}
					})
				}
			})
		}
	})
}

// freePort returns an address without a listener.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
