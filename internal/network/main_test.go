package network_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/longshore/longshore/internal/network/names"
)

// TestMain lets the test binary be the name server of sandboxes, and an agent that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == names.Arg {
		os.Exit(names.Main())
	}
	if len(os.Args) > 2 && os.Args[1] == ingressArg {
		os.Exit(ingressMain())
	}
	if len(os.Args) > 4 && os.Args[1] == restlessArg {
		fmt.Fprintln(os.Stderr, restless(os.Args[2], os.Args[3], os.Args[4]))
		os.Exit(1)
	}
	ended := make(chan int)
	go func() { ended <- m.Run() }()
	for {
		select {
		case fn := <-first:
			fn()
		case code := <-ended:
			os.Exit(code)
		}
	}
}

// first takes functions for the first thread of the process.
var first = firstThread()

// firstThread keeps the goroutine of TestMain on the first thread, where packages are initialized.
func firstThread() chan func() {
	runtime.LockOSThread()
	return make(chan func())
}
