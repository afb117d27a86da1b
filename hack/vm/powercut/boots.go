package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// address returns the guest's address for boot i of 0 to 2n. It changes twice.
func address(i, n int) string {
	addresses := []string{"10.0.2.15", "10.0.2.77", "10.0.2.140"}
	return addresses[min(i*len(addresses)/(2*n), len(addresses)-1)]
}

// longShutdown is shorter than the time that systemd waits for programs that ignore SIGTERM, 90 seconds.
const longShutdown = 85 * time.Second

// services lets the guest reboot and cuts its power in turn, n times each. Then it boots once more.
func (l *lab) services(ctx context.Context, n int) error {
	book := newLedger()
	l.test, l.rise = book, 40*time.Second
	// A card without a way out: the guest's address is all that is needed.
	l.devices = []string{"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,addr=13"}
	for i := range 2 * n {
		book.address = address(i, n)
		what := l.reboot
		if i%2 == 1 {
			what = l.cut
		}
		if err := what(ctx, i+1); err != nil {
			return fmt.Errorf("boot %d: %w", i+1, err)
		}
	}
	book.address = address(2*n, n)
	if err := l.last(ctx); err != nil {
		return fmt.Errorf("last boot: %w", err)
	}
	fmt.Printf("services: %d reboots and %d power cuts survived, with three addresses of the guest; writes: %v\n", n, n, book.wrote)
	return nil
}

// reboot boots, and lets the guest reboot itself in the middle of its work. A disk that keeps its power
// loses nothing.
func (l *lab) reboot(ctx context.Context, i int) error {
	began := time.Now()
	g, err := l.boot(ctx, fmt.Sprintf("longshore.work=1 longshore.reboot=%d", 1+l.rnd.IntN(4)))
	if err != nil {
		return err
	}
	defer func() { _ = g.end() }()
	if err := g.until(func(line string) bool { return strings.HasPrefix(line, sayWorking) }); err != nil {
		return err
	}
	working := time.Now()
	if err := g.until(func(line string) bool { return line == sayReboot }); err != nil {
		return err
	}
	leaving := time.Now()
	if err := g.goDown(); err != nil {
		return err
	}
	if _, err := l.disk.settle(keepAll, l.rnd); err != nil {
		return err
	}
	took := time.Since(leaving)
	if took > longShutdown {
		return fmt.Errorf("the guest went down in %v: it waited for programs that nobody had stopped", took)
	}
	fmt.Printf("reboot %2d: checked after %.0f s, went down in %.0f s; next boot: %s\n",
		i, working.Sub(began).Seconds(), took.Seconds(), l.test.params())
	return nil
}

// goDown takes lines until QEMU has ended by itself.
func (g *machine) goDown() error {
	for {
		select {
		case line, ok := <-g.lines:
			if !ok {
				return g.end()
			}
			if err := g.take(line, ok); err != nil {
				return err
			}
		case <-g.timer.C:
			return fmt.Errorf("the guest does not go down after %q", g.last)
		}
	}
}
