package cli

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/service"
)

// serviceFlags are the flags of run for units of systemd.
type serviceFlags struct {
	replace  bool
	sdnotify string
	ready    service.Ready // of sdnotify, after check
}

func (f *serviceFlags) define(fl *pflag.FlagSet) {
	fl.BoolVar(&f.replace, "replace", false, "first remove the container that has the name, even if it runs, and its anonymous volumes")
	sdnotifyFlag(fl, &f.sdnotify)
}

// sdnotifyFlag defines the flag of commands that may be a service.
func sdnotifyFlag(fl *pflag.FlagSet, ready *string) {
	fl.StringVar(ready, "sdnotify", string(service.Ignore), "be a service, and notify systemd when the program runs (running) or is healthy (healthy); ignore is no service")
}

// check parses the flags, and compares them with the others of run.
func (f *serviceFlags) check(with runFlags) (err error) {
	if f.ready, err = service.ParseReady(f.sdnotify); err != nil {
		return err
	}
	switch {
	case f.replace && with.Request.GetName() == "":
		return errors.New("--replace needs --name")
	case f.on() && with.detach:
		return errors.New("-d cannot be combined with --sdnotify: the main process of a service stays in the foreground")
	}
	return nil
}

// on reports whether the command is a service.
func (f *serviceFlags) on() bool { return f.ready == service.Running || f.ready == service.Healthy }

// clear removes the container with a name for --replace.
func (f *serviceFlags) clear(ctx context.Context, c *base.Client, name string) error {
	if !f.replace {
		return nil
	}
	return service.Exactly(ctx, c, name, func(id string) error {
		_, err := c.Containers.Remove(ctx, &longshorev1.RemoveRequest{Name: id, Force: true, Volumes: true})
		return err
	})
}

// serve runs a container as the main process of a service, and returns its exit status as an error.
func serve(ctx context.Context, a *base.App, c *base.Client, id string, ready service.Ready) error {
	m := &service.Main{App: a, Client: c, ID: id, Ready: ready}
	status, err := m.Run(ctx)
	if err == nil && status != 0 {
		err = &base.ExitError{Status: status}
	}
	return err
}
