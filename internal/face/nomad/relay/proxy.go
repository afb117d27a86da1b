package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/face/nomad/taskconf"
)

const (
	// patience is how long a call waits for an agent that is not there, unless it
	// waits as long as its caller does.
	patience = 45 * time.Second
	// blink is how long an agent may be away before the driver is unhealthy: its
	// restart takes less.
	blink = 5 * time.Second
)

// proxy answers every call that Nomad makes.
type proxy struct {
	name, version string
	log           *slog.Logger
	shutdown      func() // ends the process

	blink, patience time.Duration

	mu        sync.Mutex // guards setConfig, config, warned, gone, socket, conn, answers, agents
	setConfig []byte     // as it came last
	config    plugin.Config
	warned    string // the keys without effect that warnIgnored has logged
	gone      bool   // the last that waited for the agent has given up
	socket    string
	conn      *grpc.ClientConn // to socket; nil before the first call
	answers   map[string]frame // by call, of those that an agent always answers alike
	agents    int              // counts those that answers may be of
}

func newProxy(name, version string, log *slog.Logger) *proxy {
	return &proxy{name: name, version: version, log: log, config: plugin.Default(), socket: plugin.DefaultSocket, blink: blink, patience: patience}
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// handle is every call: grpc knows no service of ours.
func (p *proxy) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	service, call, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case plugin.DriverService:
		return p.driver(stream, method, call)
	case plugin.BaseService:
		return p.base(stream, call)
	}
	return p.own(stream, method)
}

// driver passes a call on, or answers it where the agent has no part in it.
func (p *proxy) driver(stream grpc.ServerStream, method, call string) error {
	switch call {
	case "Init", "Shutdown": // tasks live on
		return answer(stream, nil)
	case "ExecTaskStreaming":
		return p.through(stream, method)
	case "Fingerprint":
		return p.fingerprint(stream, method)
	}
	var req frame
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	limit := p.patience
	switch call {
	case "WaitTask", "TaskEvents", "TaskStats": // as long as Nomad waits
		limit = 0
	case "TaskConfigSchema", "Capabilities", "RecoverTask":
		return p.orAlone(stream, method, call, req)
	}
	err := p.repeat(stream, method, req, limit)
	if call == "StartTask" && errors.Is(err, errAway) {
		return recoverable(err)
	}
	return err
}

// orAlone passes on Nomad's first calls for each task after its restart. Nomad must not give its
// tasks up because the agent starts later: they live, and WaitTask, which waits for the agent,
// reports those that do not.
func (p *proxy) orAlone(stream grpc.ServerStream, method, call string, req frame) error {
	known, agent, ok := p.known(call)
	if ok {
		return stream.SendMsg(&known)
	}
	limit := p.blink
	p.mu.Lock()
	if p.gone {
		limit = time.Nanosecond
	}
	p.mu.Unlock()
	heard := &listener{ServerStream: stream}
	err := p.repeat(heard, method, req, limit)
	if !errors.Is(err, errAway) {
		if err == nil && call != "RecoverTask" {
			p.remember(call, agent, heard.last)
		}
		return err
	}
	p.log.Warn("answered without the agent", "call", call, "error", err)
	switch call {
	case "TaskConfigSchema":
		return send(stream, &nomaddriver.TaskConfigSchemaResponse{Spec: schema.Spec(taskconf.Fields())})
	case "Capabilities":
		p.mu.Lock()
		cfg := p.config
		p.mu.Unlock()
		return send(stream, plugin.Capabilities(p.name, cfg))
	}
	return stream.SendMsg(&frame{})
}

// errAway says that the agent does not answer.
var errAway = errors.New("the longshore agent does not answer") //nolint:gochecknoglobals // an error value

func (p *proxy) away() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%w on %s: start it (systemctl start longshore), or set config.socket of the plugin to its face.nomad.socket", errAway, p.socket)
}

// recoverable is an error after which Nomad tries the task again.
func recoverable(err error) error {
	st, derr := status.New(codes.FailedPrecondition, err.Error()).WithDetails(&nomadstructs.RecoverableError{Recoverable: true})
	if derr != nil {
		return err
	}
	return st.Err()
}

// repeat makes a call with one request, and makes it again when the agent died
// over it. Without a limit it waits for the agent as long as its caller waits.
func (p *proxy) repeat(stream grpc.ServerStream, method string, req frame, limit time.Duration) error {
	ctx := stream.Context()
	for retry := false; ; retry = true {
		conn, err := p.ready(ctx, limit)
		if err != nil {
			return err
		}
		err = p.once(conn, p.outgoing(ctx, retry), stream, method, req)
		if !died(err) || ctx.Err() != nil {
			return err
		}
		p.log.Debug("the agent went away during a call; the call is repeated", "call", method, "error", err)
	}
}

// once makes the call and passes the answers on. They all may be repeated: in a
// stream of samples or events one more is as good as the last.
func (p *proxy) once(conn *grpc.ClientConn, ctx context.Context, stream grpc.ServerStream, method string, req frame) error { //nolint:revive // conn is the receiver
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := up.SendMsg(&req); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg tells why
		return err
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	return pass(up, stream)
}

// pass copies messages until the end of the stream.
func pass(from grpc.ClientStream, to grpc.ServerStream) error {
	for {
		var m frame
		err := from.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := to.SendMsg(&m); err != nil {
			return err
		}
	}
}

// through joins the two streams of a call that cannot be repeated.
func (p *proxy) through(stream grpc.ServerStream, method string) error {
	conn, err := p.ready(stream.Context(), p.patience)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.outgoing(stream.Context(), false))
	defer cancel()
	up, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return notDead(err)
	}
	// Nomad never ends its side: the wait for more of it ends with the call.
	go func() {
		for {
			var m frame
			if err := stream.RecvMsg(&m); err != nil {
				_ = up.CloseSend()
				return
			}
			if up.SendMsg(&m) != nil {
				return
			}
		}
	}()
	return notDead(pass(up, stream))
}

// died reports whether a call has ended because the agent has: the face itself
// never answers so.
func died(err error) bool {
	c := status.Code(err)
	return c == codes.Unavailable || c == codes.Canceled
}

// notDead takes from an error the code that would tell Nomad that we have died.
func notDead(err error) error {
	if err != nil && died(err) {
		return status.Error(codes.Unknown, "the longshore agent went away: "+status.Convert(err).Message())
	}
	return err
}

func (p *proxy) outgoing(ctx context.Context, retry bool) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return plugin.Caller{Name: p.name, SetConfig: p.setConfig, Retry: retry}.Outgoing(ctx)
}

// ready returns a connection to the agent once there is one. Without one in time
// the error is errAway.
func (p *proxy) ready(ctx context.Context, limit time.Duration) (*grpc.ClientConn, error) {
	conn, err := p.dial()
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errAway)
		defer cancel()
	}
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			p.setGone(false)
			return conn, nil
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			if errors.Is(context.Cause(ctx), errAway) {
				p.setGone(true)
				return nil, p.away()
			}
			return nil, context.Cause(ctx)
		}
	}
}

func (p *proxy) setGone(gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = gone
}

func (p *proxy) dial() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		return p.conn, nil
	}
	socket := p.socket
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			p.forget()
			return c, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}), grpc.WithIdleTimeout(0))
	if err != nil {
		return nil, fmt.Errorf("agent's socket %s: %w", socket, err)
	}
	p.conn = conn
	return conn, nil
}
