package base

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// CompleteTime bounds the wait of a shell's completion for names. Tests on a busy machine set more.
var CompleteTime = 2 * time.Second

// maxAnswer is the size of the largest message accepted from the agent, in bytes: a list of all
// objects.
const maxAnswer = 64 << 20

// The flow control of output. With gRPC's default window, or one that it finds by probing, half of the time would go to
// messages about the window.
const (
	window     = 4 << 20   // bytes that the agent may send before we acknowledge them
	readBuffer = 256 << 10 // bytes
)

// connectTime bounds the wait for the agent's first bytes, also the first ones after its start. systemd
// accepts connections before the agent runs, and on a busy node the agent may need seconds for them.
const connectTime = time.Minute

// reconnect says how often a command that waits for the agent's next start tries to connect.
var reconnect = backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}

// Client is a connection to the agent.
type Client struct {
	Conn       *grpc.ClientConn
	Containers longshorev1.ContainersClient
	Images     longshorev1.ImagesClient
	Volumes    longshorev1.VolumesClient
	Networks   longshorev1.NetworksClient
	Node       longshorev1.NodeClient
	Swarm      longshorev1.SwarmClient
}

// Connect makes a connection. Only the first call shows whether the agent answers.
func (a *App) Connect() (*Client, error) {
	at, err := a.place()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///longshore",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket, protected by its file mode, or vsock, which is the host's
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return at.dial(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTime}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithReadBufferSize(readBuffer),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", at, err)
	}
	return &Client{
		conn, longshorev1.NewContainersClient(conn), longshorev1.NewImagesClient(conn), longshorev1.NewVolumesClient(conn), longshorev1.NewNetworksClient(conn),
		longshorev1.NewNodeClient(conn), longshorev1.NewSwarmClient(conn),
	}, nil
}

// Call connects, runs fn and closes the connection.
func (a *App) Call(fn func(*Client) error) error {
	c, err := a.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = c.Conn.Close() }()
	return fn(c)
}

// Explain returns an error as one line for people, with advice.
func (a *App) Explain(err error) string {
	var from interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &from) {
		return OneLine(err.Error())
	}
	st := from.GRPCStatus()
	if st.Code() == codes.Unavailable {
		if why := a.unreachable(); why != "" {
			return why
		}
	}
	longID := regexp.MustCompile(`\b([0-9a-f]{12})[0-9a-f]{52}\b`) // shortened to its beginning for people
	text := longID.ReplaceAllString(OneLine(st.Message()), "$1")
	// The class's own words add nothing to the message.
	for _, class := range []string{"not found", "already exists", "invalid argument", "failed precondition", "permission denied"} {
		if cut, ok := strings.CutSuffix(text, ": "+class); ok {
			text = cut
			if class == "not found" || class == "already exists" {
				text += ": " + class // the object's name alone does not explain it
			}
			break
		}
	}
	switch st.Code() {
	case codes.Unimplemented:
		text += otherVersion(a)
	case codes.Canceled:
		text = "interrupted"
	case codes.OK, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.Internal, codes.Unavailable, codes.DataLoss, codes.Unauthenticated:
	}
	return text
}

// otherVersion returns a hint if the agent has another version than this program, and "" if it has the same or does not
// answer.
func otherVersion(a *App) string {
	ctx, cancel := context.WithTimeout(context.Background(), CompleteTime)
	defer cancel()
	hint := ""
	_ = a.Call(func(c *Client) error { // without an answer there is no hint
		resp, err := c.Node.Version(ctx, &longshorev1.VersionRequest{})
		if err == nil && resp.GetVersion() != a.Version {
			hint = fmt.Sprintf(" (the agent has version %s, this program %s)", resp.GetVersion(), a.Version)
		}
		return err
	})
	return hint
}

// StatusCannot is the exit status when a program could not be started and no StartFailure says
// otherwise.
const StatusCannot = 125

// StartError returns an error of run or exec with the exit status that a shell would use for it.
func StartError(err error) error {
	if err == nil {
		return nil
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		return err
	}
	code := StatusCannot
	if st, ok := status.FromError(err); ok {
		for _, d := range st.Details() {
			if f, ok := d.(*longshorev1.StartFailure); ok {
				code = int(f.GetExitStatus())
			}
		}
	}
	return &ExitError{Status: code, Err: err}
}
