// Package roles chooses which of the keeper's programs a process is: the keeper, its
// nest, or an init for containers that ask for one. They are one file, and in a virtual
// machine's guest they are in the agent's.
package roles

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/nest"
	"github.com/longshore/longshore/internal/keeper/server"
	"github.com/longshore/longshore/internal/keeper/tinyinit"
)

const usage = "usage: longshore-keeper start DIR | nest DIR | keeper DIR [RESUME] | init [PROGRAM ARGUMENT…] | probe\n"

// Main is the program with these arguments, the first of which is its own name. It
// returns the status to exit with.
func Main(args []string) int {
	if len(args) >= 2 && args[1] == "init" {
		return tinyinit.Main(args[2:])
	}
	if len(args) == 2 && args[1] == "probe" {
		return 0 // the caller only checks that the program runs
	}
	if len(args) < 3 {
		_ = kernel.WriteAll(2, []byte(usage))
		return 2
	}
	dir := args[2]
	kernel.ResetSignals()
	switch args[1] {
	case "start":
		return start(dir)
	case "nest":
		return nest.Main(dir)
	case "keeper":
		resume := -1
		if len(args) > 3 {
			resume = number(args[3])
		}
		return server.Main(dir, resume)
	}
	_ = kernel.WriteAll(2, []byte(usage))
	return 2
}

// start leaves a nest running that is not a child of its caller. The socket exists
// when start returns.
func start(dir string) int {
	// The nest must not inherit descriptors that our own parents left open.
	_ = unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	fd, err := kernel.Listen(dir)
	if err == nil {
		self, done := kernel.Shielded("/proc/self/exe")
		defer done()
		kernel.HugePages(false) // for the nest and the processes it starts
		_, _, err = kernel.Start(self, []string{"longshore-keeper", "nest", dir}, kernel.SmallEnv(1), []int{0, 1, 2, fd})
	}
	if err != nil {
		_ = kernel.WriteAll(2, []byte("start: "+err.Error()+"\n"))
		return 1
	}
	return 0
}

func number(s string) int {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' || n > 1<<24 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}
