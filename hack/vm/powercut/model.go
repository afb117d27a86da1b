package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Lines between guest and host on the console: "vm: WORD …".
const (
	sayUp        = "up"        // the init script runs
	sayWorking   = "working"   // all was found well; from here on there is work to cut
	sayBegin     = "begin"     // OPERATION IMAGE: about to start
	sayDid       = "did"       // OPERATION IMAGE: the agent said it is done
	sayHas       = "has"       // IMAGE: the agent lists it, and it ran whole
	sayViolation = "violation" // TEXT: a violation
	sayDone      = "done"      // the guest powers off by itself
)

const (
	opPull   = "pull"
	opRemove = "rmi"
	opRun    = "run" // of a container that its restart policy starts after a boot, and a write in it
	opDrop   = "rm"
)

// firstContainer is the number of the first container. Images have smaller ones.
const firstContainer = 1000

// containers is the number of containers that come and go.
const containers = 4

// wanted has the expected images and containers after the next boot: true for an acknowledged pull or
// run, false for an acknowledged removal. An object that is missing here was being made or removed at
// the power cut, so either is right.
type wanted map[int]bool

func (w wanted) params() string { return "longshore.mode=powercut longshore.want=" + w.String() }

func (w wanted) observe(line string) error {
	f := strings.Fields(line)
	if len(f) == 0 {
		return nil
	}
	i, err := strconv.Atoi(f[len(f)-1])
	if err != nil {
		return nil //nolint:nilerr // no line about an object
	}
	switch strings.Join(f[:len(f)-1], " ") {
	case sayBegin + " " + opPull, sayBegin + " " + opRemove, sayBegin + " " + opRun, sayBegin + " " + opDrop:
		delete(w, i)
	case sayDid + " " + opPull, sayDid + " " + opRun, sayHas:
		w[i] = true
	case sayDid + " " + opRemove, sayDid + " " + opDrop:
		w[i] = false
	}
	return nil
}

// String is the form on the kernel's command line: +1-2 wants 1 and not 2.
func (w wanted) String() string {
	var b strings.Builder
	for _, i := range slices.Sorted(maps.Keys(w)) {
		b.WriteByte("-+"[btoi(w[i])])
		b.WriteString(strconv.Itoa(i))
	}
	return b.String()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func parseWanted(s string) (wanted, error) {
	w := wanted{}
	for s != "" {
		end := strings.IndexAny(s[1:], "+-") + 1
		if end == 0 {
			end = len(s)
		}
		i, err := strconv.ParseUint(s[1:end], 10, 16)
		if err != nil || s[0] != '+' && s[0] != '-' {
			return nil, fmt.Errorf("wanted objects: %q", s)
		}
		w[int(i)], s = s[0] == '+', s[end:]
	}
	return w, nil
}
