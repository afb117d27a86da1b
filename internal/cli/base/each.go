package base

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// SignalName returns the name of a signal, or its number in words.
func SignalName(n int32) string {
	if s := unix.SignalName(syscall.Signal(n)); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}

// AbsentError is the error of a removal without an object. Each prints it, and does not fail.
type AbsentError struct{ Err error }

func (e *AbsentError) Error() string { return e.Err.Error() }

// IfForced returns err, or, with force and for NotFound, an AbsentError of it.
func IfForced(force bool, err error) error {
	if force && status.Code(err) == codes.NotFound {
		return &AbsentError{err}
	}
	return err
}

// Each calls fn for every name, prints the names after each success, and reports all errors.
func (a *App) Each(ctx context.Context, names []string, fn func(context.Context, *Client, string) error) error {
	return a.Call(func(c *Client) error {
		var errs []error
		for _, name := range names {
			if err := fn(ctx, c, name); err != nil {
				if absent := (*AbsentError)(nil); errors.As(err, &absent) {
					a.Warn("%s", a.Explain(absent.Err))
					continue
				}
				if status.Code(err) == codes.Unavailable || len(names) == 1 {
					return err
				}
				errs = append(errs, err)
				a.Warn("%s", a.Explain(err))
				continue
			}
			if err := a.Print("%s\n", name); err != nil {
				return err
			}
		}
		if len(errs) > 0 {
			return &ExitError{Status: 1} // each error has already been printed
		}
		return nil
	})
}

// Receive calls fn with every message until the stream ends.
func Receive[M any](recv func() (*M, error), fn func(*M) error) error {
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}
