// Package checkpoint has the commands checkpoint and restore.
package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/foreign"
)

// tcpFlags are the flags for established TCP connections.
type tcpFlags struct{ keep, closed bool }

func (f *tcpFlags) add(cmd *cobra.Command, keep, closed string) {
	cmd.Flags().BoolVar(&f.keep, "tcp-established", false, keep)
	cmd.Flags().BoolVar(&f.closed, "tcp-close", false, closed)
	cmd.MarkFlagsMutuallyExclusive("tcp-established", "tcp-close")
}

func (f *tcpFlags) mode() string {
	switch {
	case f.keep:
		return "keep"
	case f.closed:
		return "close"
	}
	return ""
}

// New returns the command checkpoint.
func New(a *base.App) *cobra.Command {
	req := &longshorev1.CheckpointRequest{}
	var tcp tcpFlags
	var export string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "checkpoint [flags] CONTAINER...",
		Short: "Store the processes of running containers",
		Long: `Store the processes of running containers with their memory, open files and the changes of their root file systems. The
containers end, unless they are left running; restore continues them. A tar of --export can be restored on another node.
It needs CRIU on the node.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if _, ok := foreign.Command("checkpoint " + args[0]); ok { // docker's command has commands
					return base.NeedsCommand(cmd, args)
				}
			}
			return base.MinArgs(1, "a container")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if export != "" && len(args) > 1 {
				return &base.UsageError{Err: errors.New("--export is for one container")}
			}
			if req.Tcp = tcp.mode(); timeout > 0 {
				req.Timeout = durationpb.New(timeout)
			}
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				req.Name = name
				if _, err := c.Containers.Checkpoint(ctx, req); err != nil || export == "" {
					return err
				}
				return exportCheckpoint(ctx, a, c, req, export)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&export, "export", "e", "", "also write the checkpoint to a file as a tar")
	fl.BoolVarP(&req.LeaveRunning, "leave-running", "R", false, "let the containers continue")
	fl.BoolVar(&req.FileLocks, "file-locks", false, "store file locks: nobody outside of the container may have a lock of its files")
	fl.BoolVar(&req.Force, "force", false, "also containers of other owners")
	fl.DurationVar(&timeout, "timeout", 0, "the longest time that CRIU may take (default 10m)")
	tcp.add(cmd, "let TCP connections continue after the restore", "close TCP connections in the restored container")
	return cmd
}

// exportCheckpoint writes a checkpoint to a file. That of a container that continues is then removed from the node: it does not fit
// the container's files for long.
func exportCheckpoint(ctx context.Context, a *base.App, c *base.Client, req *longshorev1.CheckpointRequest, path string) error {
	stream, err := c.Containers.ExportCheckpoint(ctx, &longshorev1.ExportCheckpointRequest{Name: req.GetName(), Force: req.GetForce(), Remove: req.GetLeaveRunning()})
	if err != nil {
		return err
	}
	return a.WriteTo(path, func(w io.Writer) error {
		return base.Receive(stream.Recv, func(m *longshorev1.ExportCheckpointResponse) error {
			_, err := w.Write(m.GetData())
			return err
		})
	})
}

// NewRestore returns the command restore.
func NewRestore(a *base.App) *cobra.Command {
	start := &longshorev1.RestoreStart{}
	var tcp tcpFlags
	var name, from string
	cmd := &cobra.Command{
		Use:   "restore [flags] CONTAINER|FILE",
		Short: "Continue the processes of a checkpoint",
		Long: `Continue the processes of a container that has ended with its checkpoint, or those of a tar of checkpoint --export in a new
container. An argument with a slash, one that ends like a tar's name, and - for standard input are files. Such a tar decides about
the rights of its processes: restore only those that you trust. The new container has the
settings and the image of the stored one; its volumes and binds must have the files that its processes have open.`,
		Args: func(_ *cobra.Command, args []string) error {
			if (len(args) == 1) == (from != "") {
				return base.ExactArgs(1, "a container, or --import and a file,")(nil, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			start.Tcp = tcp.mode()
			if from == "" && isArchive(args[0]) {
				from = args[0]
			}
			if start.Archive = from != ""; start.GetArchive() {
				start.Name = name
			} else {
				start.Name = args[0]
			}
			return a.Call(func(c *base.Client) error {
				resp, err := restoreFrom(cmd.Context(), c, start, from, a.Stdin)
				if err != nil {
					return err
				}
				if start.GetArchive() {
					return a.Print("%s\n", resp.GetId())
				}
				return a.Print("%s\n", args[0])
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&from, "import", "i", "", "file with a checkpoint; - is standard input")
	fl.StringVarP(&name, "name", "n", "", "name of the new container (default: that of the checkpoint)")
	fl.StringVar(&start.Pull, "pull", "missing", "when to pull the image: missing, always, never")
	tcp.add(cmd, "let TCP connections continue: the container must have the same address", "close TCP connections")
	return cmd
}

// isArchive reports whether an argument of restore is a file instead of a container.
func isArchive(arg string) bool {
	return arg == "-" || strings.ContainsRune(arg, '/') || slices.ContainsFunc([]string{".tar", ".tar.gz", ".tgz", ".tar.zst"}, func(end string) bool { return strings.HasSuffix(arg, end) })
}

// restoreFrom calls Restore, with the content of a file if there is one.
func restoreFrom(ctx context.Context, c *base.Client, start *longshorev1.RestoreStart, path string, stdin io.Reader) (*longshorev1.RestoreResponse, error) {
	in := stdin
	if path != "" && path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	stream, err := c.Containers.Restore(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&longshorev1.RestoreRequest{Start: start})
	if err == nil && path != "" {
		w := bufio.NewWriterSize(sender{stream}, base.ArchiveChunk)
		if _, err = io.Copy(w, in); err == nil {
			err = w.Flush()
		}
	}
	if err != nil && !errors.Is(err, io.EOF) { // after EOF the answer has the reason
		return nil, err
	}
	return stream.CloseAndRecv()
}

// sender writes the data of a restore to its stream.
type sender struct {
	stream grpc.ClientStreamingClient[longshorev1.RestoreRequest, longshorev1.RestoreResponse]
}

func (s sender) Write(p []byte) (int, error) {
	if err := s.stream.Send(&longshorev1.RestoreRequest{Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}
