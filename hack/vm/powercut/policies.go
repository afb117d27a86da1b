package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Further lines of the guest with services.
const (
	sayFact   = "fact"   // NAME VALUE: no boot may change it, such as the ID of a network
	sayWrote  = "wrote"  // WRITER N: the N-th write is acknowledged
	sayFound  = "found"  // WRITER N: a boot found the first N writes
	sayReboot = "reboot" // the guest reboots by itself
)

// The requests of a caller for a container, as words of longshore.
const (
	opStart   = "start"
	opStop    = "stop"
	opRestart = "restart"
)

// hand is the last request of a caller for a container, as far as the host knows.
type hand int

const (
	letRun hand = iota
	stopped
	unsure // the power went between the request and its answer
)

// fate is the state of a container that must follow from its policy.
type fate int

const (
	mustRun fate = iota
	mustRest
	mayRun
)

// afterBoot returns the state of a container after a boot. All programs of the guest end with 0 when
// they are stopped, so a stop leaves on-failure nothing to do.
func afterBoot(policy string, h hand) fate {
	switch {
	case policy == "always":
		return mustRun
	case policy == "no":
		return mustRest
	case h == unsure:
		return mayRun
	case h == stopped:
		return mustRest
	}
	return mustRun
}

// ledger is the host's knowledge of the guest with services.
type ledger struct {
	address string // the guest's, in the next boot
	settled bool   // the services exist
	wrote   map[string]int
	hands   map[string]hand
	facts   map[string]string
}

func newLedger() *ledger {
	return &ledger{wrote: map[string]int{}, hands: map[string]hand{}, facts: map[string]string{}}
}

func (l *ledger) params() string {
	return fmt.Sprintf("longshore.mode=services longshore.address=%s longshore.settled=%d longshore.stopped=%s longshore.unsure=%s",
		l.address, btoi(l.settled), l.those(stopped), l.those(unsure))
}

func (l *ledger) those(want hand) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(l.hands)) {
		if l.hands[name] == want {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (l *ledger) observe(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	subject, value, ok := strings.Cut(rest, " ")
	if !ok {
		l.settled = l.settled || word == sayWorking
		return nil
	}
	switch word {
	case sayFact:
		if was, known := l.facts[subject]; known && was != value {
			return fmt.Errorf("%s was %s and is %s", subject, was, value)
		}
		l.facts[subject] = value
	case sayWrote, sayFound:
		return l.count(word, subject, value)
	case sayBegin:
		if subject != opRestart { // its container is to run before and after it
			l.hands[value] = unsure
		}
	case sayDid:
		l.hands[value] = letRun
		if subject == opStop {
			l.hands[value] = stopped
		}
	}
	return nil
}

// count compares the writes that a boot found with the acknowledged ones. There may be one more, if the
// power went before the guest could report its answer.
func (l *ledger) count(word, writer, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	was := l.wrote[writer]
	switch {
	case word == sayFound && n < was:
		return fmt.Errorf("%s lost writes: %d were acknowledged, %d are there", writer, was, n)
	case n > was+1:
		return fmt.Errorf("%s has %d writes after %d", writer, n, was)
	}
	l.wrote[writer] = n
	return nil
}
