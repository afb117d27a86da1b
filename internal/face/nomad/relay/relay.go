// Package relay is the driver plugin that Nomad starts: it shakes hands, answers calls that do not
// need the agent, and passes every call of the Driver service on to the agent's face, byte for
// byte.
//
// Nomad must not notice that the agent is restarted: calls that may be repeated wait for it and are
// sent again. It must not know the meaning of the calls, nor the engine. Start reading at Main,
// then proxy.go.
package relay

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// Wanted reports whether Nomad has started this process as a plugin.
func Wanted(getenv func(string) string) bool { return getenv(plugin.CookieKey) == plugin.CookieValue }

// Options are the parameters of Main.
type Options struct {
	Args    []string // without the program's name: the plugin block's args
	Getenv  func(string) string
	Stdout  io.Writer // the handshake, one line
	Stderr  io.Writer // hclog's JSON
	Version string
	// Blink is how long the agent may be away before the driver is unhealthy, and
	// Patience how long calls wait for it that have an end; 0 are the usual times.
	Blink, Patience time.Duration
}

// protocol is the handshake's: go-plugin's own version, then Nomad's.
const protocol = "1|2|unix|%s|grpc|\n"

// Main serves until Nomad asks for the end, or ctx ends, and returns the exit
// status.
func Main(ctx context.Context, o Options) int {
	log := slog.New(newHandler(o.Stderr))
	name, err := arguments(o.Args)
	if err == nil {
		err = run(ctx, o, name, log)
	}
	if err != nil {
		log.ErrorContext(ctx, "the plugin failed", "error", err)
		return 1
	}
	return 0
}

// arguments reads the plugin block's args.
func arguments(args []string) (name string, err error) {
	set := flag.NewFlagSet("longshore", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&name, "name", plugin.DriverName, "the driver's name in jobs")
	if err := set.Parse(args); err != nil {
		return "", fmt.Errorf("args of the plugin block: %w", err)
	}
	if set.NArg() > 0 || !regexp.MustCompile(`^[a-z][a-z0-9_-]*$`).MatchString(name) {
		return "", fmt.Errorf("args of the plugin block: %q; -name=NAME is all there is", args)
	}
	return name, nil
}

// lastWords is how long calls in flight may take when the plugin ends: Nomad kills
// it after two seconds.
const lastWords = 500 * time.Millisecond

func run(ctx context.Context, o Options, name string, log *slog.Logger) (err error) {
	// The agent's ^C goes to its whole process group: Nomad ends us itself.
	signal.Ignore(syscall.SIGINT)
	l, remove, err := listen(ctx, o.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	p := newProxy(name, o.Version, log)
	p.blink, p.patience = cmp.Or(o.Blink, p.blink), cmp.Or(o.Patience, p.patience)
	defer p.close()
	srv := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	end := context.AfterFunc(ctx, func() {
		// The answer to the call that ends us goes out first; calls that last as
		// long as a task are cut off.
		t := time.AfterFunc(lastWords, srv.Stop)
		defer t.Stop()
		srv.GracefulStop()
	})
	defer end()
	p.shutdown = stop
	if _, err := fmt.Fprintf(o.Stdout, protocol, l.Addr()); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if err := srv.Serve(connlimit.Lasting(l)); ctx.Err() == nil {
		return err
	}
	return nil
}

// listen opens the socket that the handshake names, in a directory for us alone.
func listen(ctx context.Context, dir string) (_ net.Listener, remove func() error, err error) {
	if dir, err = os.MkdirTemp(dir, "longshore-nomad-"); err != nil {
		return nil, nil, fmt.Errorf("make a directory for the socket: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", filepath.Join(dir, "plugin.sock"))
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return l, func() error { return os.RemoveAll(dir) }, nil
}
