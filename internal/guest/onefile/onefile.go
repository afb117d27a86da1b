// Package onefile makes the agent's file the keeper's, too: in a virtual machine files are
// memory, and in two files the Go runtime would be there twice.
//
// A process that was started as one of the keeper's programs never returns from this package's
// init, which Go runs before that of protobuf and of most other libraries. So keeper, nest and the
// containers' init touch few of the agent's pages: from main, nest and keeper had 4 MB more of
// their own.
package onefile

import (
	"os"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/roles"
)

func init() { //nolint:gochecknoinits // see above
	if Asked(os.Args) {
		os.Exit(roles.Main(os.Args))
	}
}

// Asked reports whether these are the arguments of one of the keeper's programs. The agent
// as a machine's first process has any arguments that the kernel's command line contains,
// so the name alone says it: agents start a keeper under the first one, and the engine
// starts inits from files of the second one.
func Asked(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := args[0]
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '/' {
			name = name[i+1:]
			break
		}
	}
	return name == kernel.KeeperName || name == kernel.NestName || name == ".init"
}
