package main

import (
	"context"
	"os"
	"time"

	"github.com/longshore/longshore/test/bench/hubload"
)

// ofHub measures our hub, and swarmkit's dispatcher beside it where HUBSERVER_SWARMKIT names the
// program test/bench/swarmkit/dispatcher.
func ofHub(ctx context.Context, list string) error {
	header("a hub")
	nodes, err := hubload.Parse(list)
	if err != nil {
		return err
	}
	o := hubload.Options{Ours: os.Getenv("HUBSERVER"), Theirs: os.Getenv("HUBSERVER_SWARMKIT"), Nodes: nodes, Disk: os.TempDir(), Limit: 4 * time.Minute}
	if o.Ours == "" {
		o.Ours = "bin/bench/hubserver"
	}
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		o.Memory = "/dev/shm"
	}
	return hubload.Run(ctx, o)
}
