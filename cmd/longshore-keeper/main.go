// Command longshore-keeper is three small programs in one: the keeper, its nest, and
// an init for containers that ask for one. It is started by the agent and by the
// runtimes, not by people.
//
// Its imports are few on purpose, because it stays resident on every node; a
// test keeps them so. Start reading at internal/keeper/server.
package main

import (
	"os"

	"github.com/longshore/longshore/internal/keeper/roles"
)

func main() { os.Exit(roles.Main(os.Args)) }
