// Package roles chooses which of the keeper's programs a process is: the keeper, its
// nest, or an init for containers that ask for one. They are one file, and in a virtual
// machine's guest they are in the agent's.
package roles

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/nest"
	"github.com/longshore/longshore/internal/keeper/server"
	"github.com/longshore/longshore/internal/keeper/tinyinit"
	"github.com/longshore/longshore/internal/keeper/wire"
)

const usage = "usage: longshore-keeper start DIR [SOCKET] | nest DIR [ITEMS] | keeper DIR [RESUME] | init [PROGRAM ARGUMENT…] | probe | protocol\n"

// Main is the program with these arguments, the first of which is its own name. It
// returns the status to exit with.
func Main(args []string) int {
	if len(args) >= 2 && args[1] == "init" {
		return tinyinit.Main(args[2:])
	}
	if len(args) == 2 && args[1] == "probe" {
		return 0 // the caller only checks that the program runs
	}
	if len(args) == 2 && args[1] == "protocol" {
		_ = kernel.WriteAll(1, []byte(wire.Formats(server.Release)))
		return 0
	}
	if len(args) < 3 {
		_ = kernel.WriteAll(2, []byte(usage))
		return 2
	}
	dir, file := args[2], -1
	if len(args) > 3 {
		file = number(args[3])
	}
	kernel.ResetSignals()
	switch args[1] {
	case "start":
		return start(dir, file)
	case "nest":
		// Not the file's name: who kills one of the two programs by its name must not hit both.
		kernel.SetName(kernel.NestName)
		return nest.Main(dir, file)
	case "keeper":
		kernel.SetName(kernel.KeeperName)
		return server.Main(dir, file)
	}
	_ = kernel.WriteAll(2, []byte(usage))
	return 2
}

// start leaves a nest running that is not a child of its caller. The agent's socket exists
// when start returns. From socket, unless it is -1, it first receives the items that the nest
// is to hold; an agent that dies meanwhile has sent what it could.
func start(dir string, socket int) int {
	// The nest must not inherit descriptors that our own parents left open.
	_ = unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	if socket >= 0 {
		_ = unix.Unlink(dir + "/keeper.sock") // that of the pair before
	}
	args := []string{kernel.NestName, "nest", dir}
	fd, err := kernel.Listen(dir)
	if err == nil && socket >= 0 {
		var mem int
		if mem, err = receiveItems(socket); err == nil {
			args = append(args, kernel.Itoa(mem))
		}
	}
	if err == nil {
		self, done := kernel.Shielded("/proc/self/exe")
		defer done()
		kernel.HugePages(false) // for the nest and the processes it starts
		runtime.LockOSThread()  // which has the keyring
		if err = kernel.LockKeyring(); err != nil {
			_ = kernel.WriteAll(2, []byte("start: session keyring: "+err.Error()+"; if containers have used up uid 0's quota of keys, raise kernel.keys.root_maxkeys and root_maxbytes\n"))
			return 1
		}
		_, _, err = kernel.Start(self, args, kernel.SmallEnv(1), []int{0, 1, 2, fd})
	}
	if err != nil {
		_ = kernel.WriteAll(2, []byte("start: "+err.Error()+"\n"))
		return 1
	}
	return 0
}

// receiveItems receives items until there are no more, and returns a memory file with them.
// The file and the items' descriptors stay open in the nest.
func receiveItems(socket int) (int, error) {
	var in kernel.Receiver
	var all wire.HandedItems
	for {
		frame, fds, err := in.Recv(socket, 0)
		if err != nil {
			return -1, err
		}
		h, inline, ok := wire.ParseHeader(frame)
		if len(frame) == 0 || ok && h.Kind == wire.KindNestReady {
			break
		}
		if !ok || h.Kind != wire.KindNestItem {
			return -1, unix.EPROTO
		}
		body, fds, err := kernel.Body(h, inline, fds)
		it := wire.HandedItem{}
		if err != nil || !wire.Unmarshal(append([]byte(nil), body...), &it.Item) || len(it.Item.Roles) != len(fds) {
			return -1, unix.EPROTO
		}
		for _, fd := range fds {
			kernel.Inherit(fd)
			it.FDs = append(it.FDs, uint64(fd))
		}
		all.List = append(all.List, it)
	}
	mem, err := kernel.Memfd(wire.Record(&all))
	if err == nil {
		kernel.Inherit(mem)
	}
	return mem, err
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
