// Command powercut cuts a node's power in the middle of its work and checks that it comes back
// complete.
//
//	powercut images DIR          makes the images that the guest's registry serves
//	powercut host …              boots the guest again and again, and cuts its power
//	powercut guest               the part in the guest: check the node, then work
//	powercut services            the part in a guest with systemd and services (services.go)
//
// The host serves the guest's data disk itself (disk.go): writes that the guest
// never flushed are lost, kept or torn when the power goes, as on a disk with a
// volatile cache. SIGKILL of QEMU alone would keep all of it.
//
// The guest checks with the longshore command only, as a user would; it knows
// nothing of the agent's files. Start reading at host.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "powercut:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "images":
		return makeImages(args[1])
	case len(args) >= 1 && args[0] == "host":
		return host(ctx, args[1:])
	case len(args) == 1 && args[0] == "guest":
		return guest(ctx)
	case len(args) == 1 && args[0] == "services":
		return services(ctx)
	}
	return errors.New("usage: powercut images DIR | host … | guest | services")
}
