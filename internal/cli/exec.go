package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/session"
	"github.com/longshore/longshore/internal/cli/typed"
)

func newExec(a *app) *cobra.Command {
	req := &longshorev1.ExecStart{}
	var env, envFiles []string
	var keys session.DetachKeys
	cmd := &cobra.Command{
		Use:   "exec [flags] CONTAINER COMMAND [ARG...]",
		Short: "Run another program in a running container",
		Long:  "Run another program in a running container. exec exits with the program's exit status. If exec is ended, the program ends too, unless -d is set.",
		Args:  base.MinArgs(2, "a container and a command"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Name, req.Command = args[0], args[1:]
			fromFiles, err := typed.Files("--env-file", envFiles)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			if req.Env, err = typed.Env(append(fromFiles, env...), a.Getenv); err != nil {
				return &base.UsageError{Err: err}
			}
			return base.StartError(a.Call(func(c *base.Client) error { return a.exec(cmd.Context(), c, req, keys) }))
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVarP(&req.Detach, "detach", "d", false, "run in the background and print the ID")
	fl.BoolVarP(&req.Stdin, "interactive", "i", false, "pass standard input")
	fl.BoolVarP(&req.Tty, "tty", "t", false, "allocate a terminal")
	fl.StringArrayVarP(&env, "env", "e", nil, "environment variable, NAME=value, or NAME to copy it from this environment")
	fl.StringArrayVar(&envFiles, "env-file", nil, "file with environment variables, one NAME=value or NAME in a line")
	keys.Define(fl)
	fl.StringVarP(&req.User, "user", "u", "", "user[:group] by name or number")
	fl.StringVarP(&req.Workdir, "workdir", "w", "", "working directory")
	fl.BoolVar(&req.Privileged, "privileged", false, "all capabilities")
	fl.BoolVar(&req.Force, "force", false, "also in containers of other owners")
	return cmd
}

func (a *app) exec(ctx context.Context, c *base.Client, req *longshorev1.ExecStart, keys session.DetachKeys) error {
	if _, ok := base.Terminal(a.Stdin); req.GetTty() && req.GetStdin() && !ok {
		return errors.New("-it needs a terminal, and standard input is not one (use -i alone)")
	}
	req.Size = a.TerminalSize()
	stream, err := c.Containers.Exec(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: req}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer has the reason
		return err
	}
	if req.GetDetach() {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		return a.Print("%s\n", m.GetStarted().GetProcess())
	}
	s := &session.Session{
		App: a.App, Stdin: req.GetStdin(), Forward: true, Detach: keys, Recv: stream.Recv,
		Send: func(in *longshorev1.Input) error {
			return stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Input{Input: in}})
		},
	}
	return s.End(s.Run(ctx))
}
