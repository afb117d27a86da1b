package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/progress"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/session"
)

// runFlags are the flags of run. create has no others than runflags.Create.
type runFlags struct {
	*runflags.Create
	detach   bool
	sigProxy bool
	keys     session.DetachKeys
	streams  []string // of --attach
	service  serviceFlags
}

func newRun(a *app) *cobra.Command {
	f := runFlags{Create: runflags.New()}
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Run a program in a new container",
		Long: "Run a program in a new container, in a sandbox of its own. Without -d, run shows the program's output and exits with its exit status, or with\n" +
			"127 if the program does not exist, 126 if it cannot be executed, 125 if the container could not be created.\n" +
			"Ctrl-P Ctrl-Q, or the keys of --detach-keys, detach from a terminal.",
		Args: base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Fill(cmd.Flags(), args, a.Getenv); err != nil {
				return &base.UsageError{Err: err}
			}
			stdin, shown, err := f.attach(a.App)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			s := &session.Session{App: shown, Stdin: stdin, Forward: f.sigProxy, Detach: f.keys}
			if err := f.service.check(f); err != nil {
				return &base.UsageError{Err: err}
			}
			// A container with --rm is removed before anybody could read its log. A service leaves the log to it.
			f.Request.Hold = !f.detach && f.Request.GetAutoRemove() && !f.service.on()
			f.Request.Start, f.Request.StdinOnce = f.detach, stdin && !f.detach && !f.service.on()
			return base.StartError(a.Call(func(c *base.Client) error { return a.run(cmd.Context(), c, f, s) }))
		},
	}
	f.Define(cmd.Flags())
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "run in the background and print the ID")
	f.keys.Define(cmd.Flags())
	cmd.Flags().StringArrayVarP(&f.streams, "attach", "a", nil, "attach only these: stdin, stdout, stderr")
	cmd.Flags().BoolVar(&f.sigProxy, "sig-proxy", true, "forward signals to the program")
	f.service.define(cmd.Flags())
	return cmd
}

// attach returns the streams of --attach that the session has: whether it sends standard input, and the state with the
// outputs that it shows.
func (f runFlags) attach(a *base.App) (stdin bool, shown *base.App, err error) {
	if len(f.streams) == 0 {
		return f.Request.GetStdin(), a, nil
	}
	only := *a
	only.Stdout, only.Stderr = io.Discard, io.Discard
	asked := false
	for _, s := range f.streams {
		switch strings.ToLower(s) {
		case "stdin":
			asked = true
		case "stdout":
			only.Stdout = a.Stdout
		case "stderr":
			only.Stderr = a.Stderr
		default:
			return false, nil, fmt.Errorf("--attach %q is none of stdin, stdout, stderr", s)
		}
	}
	switch {
	case f.detach:
		return false, nil, errors.New("--attach contradicts --detach")
	case only.Stdout == io.Discard && only.Stderr == io.Discard:
		return false, nil, errors.New("--attach stdin alone shows nothing of the program: add --attach stdout, or use -d and longshore attach")
	}
	return asked && f.Request.GetStdin(), &only, nil
}

func newCreate(a *app) *cobra.Command {
	f := runflags.New()
	cmd := &cobra.Command{
		Use:   "create [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Create a container without starting it",
		Long:  "Create a container as run does and print its ID, without starting it. Use start to start it.",
		Args:  base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Fill(cmd.Flags(), args, a.Getenv); err != nil {
				return &base.UsageError{Err: err}
			}
			return base.StartError(a.Call(func(c *base.Client) error {
				created, err := a.create(cmd.Context(), c, f)
				if err != nil {
					return err
				}
				return a.Print("%s\n", created.GetId())
			}))
		},
	}
	f.Define(cmd.Flags())
	return cmd
}

func (a *app) run(ctx context.Context, c *base.Client, f runFlags, s *session.Session) error {
	if f.Request.GetTty() && f.Request.GetStdin() && !f.detach && !f.service.on() {
		if _, ok := base.Terminal(a.Stdin); !ok {
			return errors.New("-it needs a terminal, and standard input is not one (use -i alone)")
		}
	}
	if err := f.CheckIDFile(); err != nil { // before --replace removes the other container
		return err
	}
	if err := f.service.clear(ctx, c, f.Request.GetName()); err != nil {
		return err
	}
	created, err := a.create(ctx, c, f.Create)
	if err != nil {
		return err
	}
	if f.service.on() {
		return serve(ctx, s.App, c, created.GetId(), f.service.ready)
	}
	if f.detach {
		return a.Print("%s\n", created.GetId())
	}
	stream, err := c.Containers.Attach(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{
		Name: created.GetId(), Stdin: s.Stdin, Start: true, Size: f.Request.GetSize(),
	}}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer has the reason
		return err
	}
	s.Recv, s.Send = stream.Recv, func(in *longshorev1.Input) error {
		return stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}})
	}
	status, err := s.Run(ctx)
	if err == nil && f.Request.GetAutoRemove() {
		// The agent ends the stream when the container is gone.
		_ = stream.CloseSend()
		for rerr := error(nil); rerr == nil; _, rerr = stream.Recv() {
		}
	}
	return s.End(status, err)
}

// create sends the request, and shows the progress of the pull and the warnings.
func (a *app) create(ctx context.Context, c *base.Client, f *runflags.Create) (created *longshorev1.Created, err error) {
	idFile, err := f.OpenIDFile()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, idFile.Close()) }()
	if f.Request.GetPull() != "never" {
		found, err := credentialsFor(ctx, a, f.Request.GetImage(), f.Creds)
		if err != nil {
			return nil, err
		}
		f.Request.Credentials = found
	}
	f.Request.Size = a.TerminalSize()
	stream, err := c.Containers.Create(ctx, f.Request)
	if err != nil {
		return nil, err
	}
	show := progress.New(a.Stderr, f.Quiet)
	defer show.End()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if p := m.GetPull(); p != nil {
			show.Step(p)
		}
		if created := m.GetCreated(); created != nil {
			for _, w := range created.GetWarnings() {
				a.Warn("warning: %s", w)
			}
			return created, idFile.Write(created.GetId())
		}
	}
}
