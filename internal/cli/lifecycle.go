package cli

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func signalName(n int32) string {
	if s := unix.SignalName(syscall.Signal(n)); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}

// each calls fn for every name, prints the names for which it succeeded, and reports all errors.
func (a *app) each(ctx context.Context, names []string, fn func(context.Context, *client, string) error) error {
	return a.call(func(c *client) error {
		var errs []error
		for _, name := range names {
			if err := fn(ctx, c, name); err != nil {
				if status.Code(err) == codes.Unavailable || len(names) == 1 {
					return err
				}
				errs = append(errs, err)
				a.warn("%s", a.explain(err))
				continue
			}
			if err := a.print("%s\n", name); err != nil {
				return err
			}
		}
		if len(errs) > 0 {
			return &exitError{status: 1} // each error has already been printed
		}
		return nil
	})
}
