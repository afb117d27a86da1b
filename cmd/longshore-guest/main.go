// Longshore-guest is the agent inside of a virtual machine, which Kata's shim drives in
// place of kata-agent. It can be the machine's first process, and it is the keeper that it
// starts. Start reading at internal/agent/guestprogram, internal/agent/guestagent, internal/guest/boot,
// internal/guest/onefile and internal/face/kata.
package main

import (
	"os"
	"runtime/debug"

	"github.com/longshore/longshore/internal/agent/guestprogram"
	_ "github.com/longshore/longshore/internal/guest/onefile" // this program may be the keeper
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

func main() {
	os.Exit(guestprogram.Main(os.Args, guestprogram.Build{Version: version(), Keeper: os.Executable}))
}

func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
