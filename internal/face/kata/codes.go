package kata

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/longshore/longshore/internal/enums"
	"github.com/longshore/longshore/internal/face/errtext"
)

// leaveTime is how long calls in flight have when the sandbox is destroyed.
const leaveTime = 5 * time.Second

// lingerTime is how long a client that was answered may take to go.
const lingerTime = 500 * time.Millisecond

// refuse returns the status of an error with a code for the shim.
func refuse(code codes.Code, format string, args ...any) error {
	return status.Errorf(code, format, args...)
}

// agentService is the prefix of the full names of the agent's calls.
const agentService = "/grpc.AgentService/"

// intercept counts calls, and gives every error a code: INTERNAL, unless the call has
// chosen one. The shim knows no others.
func (f *Face) intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (answer any, err error) {
	begun, op := time.Now(), path.Base(info.FullMethod)
	defer func() {
		if p := recover(); p != nil {
			f.o.Counting().Panic("kata")
			f.o.Logger.ErrorContext(ctx, "a handler panicked", "call", op, "panic", p, "stack", string(debug.Stack()))
			answer, err = nil, refuse(codes.Internal, "%s: the agent failed; its log says how", op)
		}
		f.o.Counting().Request("kata", op, status.Code(err).String(), time.Since(begun))
	}()
	name := ""
	if strings.HasPrefix(info.FullMethod, agentService) {
		name = requestOf(op)
	}
	if name == readStreamRequest {
		ctx = context.WithValue(ctx, withholding{}, new(bool))
	}
	if name != "" && !f.o.Requests.allowed(name) {
		if name != readStreamRequest {
			return nil, refuse(codes.PermissionDenied, "%s is blocked by the agent's options", name)
		}
		withhold(ctx)
	}
	if name != "" {
		defer f.quiet.call()
		if err := f.begun(ctx); err != nil {
			return nil, refuse(codes.Internal, "%s: the agent has not begun: %v", op, err)
		}
	}
	end := func(bool) {}
	answered := false // not after a panic, which the policy takes for a failure
	defer func() { end(!answered || err != nil) }()
	answer, err = method(ctx, func(decoded any) (err error) {
		if err := unmarshal(decoded); err != nil {
			return err
		}
		if m, ok := decoded.(proto.Message); ok {
			if err := enums.Check(m); err != nil {
				return refuse(codes.InvalidArgument, "%s: %v", op, err)
			}
		}
		end, err = f.ask(ctx, name, decoded)
		return err
	})
	answered = true
	f.call()
	if err == nil {
		return answer, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = refuse(codes.Internal, "%s", shorten(errtext.Plain(err.Error())))
	}
	f.o.Logger.DebugContext(ctx, "call failed", "call", op, "error", err)
	return nil, err
}

// maxText bounds an error's text, which may contain the shim's input.
const maxText = 2 << 10

func shorten(s string) string {
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// unknown is the status of a container that does not exist: INVALID_ARGUMENT for calls
// about its processes and its state, as the shim expects, in the words of kata-agent.
func unknown(id string, err error) error {
	if errdefs.IsNotFound(err) {
		return refuse(codes.InvalidArgument, "invalid container id %q: the container does not exist", id)
	}
	return err
}

// checkID refuses an id that could be taken for a path or an option.
func checkID(what, id string) error {
	ok := len(id) >= 2 && len(id) <= 255
	for i, r := range id {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		ok = ok && (letter || i > 0 && (r == '.' || r == '-' || r == '_'))
	}
	if !ok {
		return fmt.Errorf("%s %q: an id begins with a letter or digit, and has two to 255 of letters, digits, '.', '-' and '_'", what, clip(id))
	}
	return nil
}

// clip shortens foreign text, for an error's text.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
