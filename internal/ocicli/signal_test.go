package ocicli_test

import (
	"context"
	"os/signal"

	"golang.org/x/sys/unix"
)

// signalContext ends as the program's own context would: not at all by itself.
func signalContext() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), unix.SIGXFSZ)
}
