package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newAttach(a *app) *cobra.Command {
	req := &longshorev1.AttachStart{}
	var noStdin, noSignals bool
	cmd := &cobra.Command{
		Use:   "attach CONTAINER",
		Short: "Join a running container's input and output",
		Long:  "Join a running container's input and output, from now on (logs shows what was before). Leave a terminal with Ctrl-P Ctrl-Q.",
		Args:  exactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name, req.Stdin = args[0], !noStdin
			return startError(a.call(func(c *client) error { return a.attach(cmd.Context(), c, req, !noSignals) }))
		},
	}
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "only watch")
	cmd.Flags().BoolVar(&noSignals, "no-signals", false, "do not send on the signals that we get")
	cmd.Flags().BoolVar(&req.Force, "force", false, "also to another owner's container")
	return cmd
}

func (a *app) attach(ctx context.Context, c *client, req *longshorev1.AttachStart, forward bool) error {
	req.Size = a.terminalSize()
	stream, err := c.containers.Attach(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: req}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer tells why
		return err
	}
	s := &session{
		a: a, stdin: req.GetStdin(), forward: forward, recv: stream.Recv,
		send: func(in *longshorev1.Input) error {
			return stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}})
		},
	}
	return a.ended(s.run(ctx))
}
