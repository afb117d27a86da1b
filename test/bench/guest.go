package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/test/bench/guest"
	"github.com/longshore/longshore/test/bench/machine"
)

// ofGuest measures the agent of a virtual machine beside a bare server and runc.
func ofGuest(ctx context.Context, b *bench) error {
	if !b.ours() {
		return nil
	}
	o := guest.Options{
		Agent: filepath.Join(b.bin, "longshore-guest"), Bare: filepath.Join(b.bin, "bench", "bareagent"), Runc: guest.Look(),
		Dir: filepath.Join(machine.Dir(), "guest"), Cgroup: "/" + machine.Name() + "/guest", Starts: 20, Runs: b.pods, Out: os.Stdout,
	}
	if _, err := os.Stat(o.Bare); errors.Is(err, fs.ErrNotExist) {
		fmt.Printf("%-28s %s is not built: make bench\n", "guest", o.Bare)
		return nil
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return err
	}
	_, err := guest.Measure(ctx, o)
	return err
}
