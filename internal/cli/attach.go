package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/session"
)

func newAttach(a *app) *cobra.Command {
	req := &longshorev1.AttachStart{}
	var noStdin, noSignals, sigProxy bool
	var keys session.DetachKeys
	cmd := &cobra.Command{
		Use:   "attach CONTAINER",
		Short: "Attach to a running container's input and output",
		Long: "Attach to a running container's input and output. Only new output is shown; logs shows earlier output.\n" +
			"Ctrl-P Ctrl-Q, or the keys of --detach-keys, detach from a terminal.",
		Args: base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name, req.Stdin = args[0], !noStdin
			return base.StartError(a.Call(func(c *base.Client) error {
				return a.attach(cmd.Context(), c, req, attached{sigProxy && !noSignals, keys})
			}))
		},
	}
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "do not attach standard input")
	cmd.Flags().BoolVar(&noSignals, "no-signals", false, "do not forward signals to the container")
	cmd.Flags().BoolVar(&sigProxy, "sig-proxy", true, "forward signals to the container")
	keys.Define(cmd.Flags())
	cmd.Flags().BoolVar(&req.Force, "force", false, "also to containers of other owners")
	return cmd
}

// attached says how a command is attached to a process.
type attached struct {
	forward bool // it forwards signals
	keys    session.DetachKeys
}

func (a *app) attach(ctx context.Context, c *base.Client, req *longshorev1.AttachStart, how attached) error {
	req.Size = a.TerminalSize()
	stream, err := c.Containers.Attach(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: req}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer has the reason
		return err
	}
	s := &session.Session{
		App: a.App, Stdin: req.GetStdin(), Forward: how.forward, Detach: how.keys, Recv: stream.Recv,
		Send: func(in *longshorev1.Input) error {
			return stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}})
		},
	}
	return s.End(s.Run(ctx))
}
