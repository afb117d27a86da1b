// Package ui has the command that serves the web page of a node.
package ui

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/control"
	page "github.com/longshore/longshore/internal/ui"
)

// New returns the command.
func New(a *base.App) *cobra.Command {
	var cfg page.Config
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a web page of the node, and print its address",
		Long: `Serve a web page of the node until Ctrl-C, and print its address. The address has a token, without which the page shows nothing.
The page only reads, unless --actions is set. Everything that it does is done by calls of the control API, with the rights of this command.
To look at another machine's node, forward a port: ssh -L 8021:127.0.0.1:8021 NODE longshore ui --listen 127.0.0.1:8021. The section [ui] of the
configuration has the agent itself serve the page.`,
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, a, cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "address on this machine, or absolute path of a unix socket; port 0 takes a free one")
	cmd.Flags().BoolVar(&cfg.Actions, "actions", false, "also stop, start, pause, resume, put to sleep and wake containers, run programs in them, and show environments")
	return cmd
}

func serve(ctx context.Context, a *base.App, cfg page.Config) error {
	cfg.TokenFile = "-" // the token is made here
	if err := cfg.Validate(); err != nil {
		return &base.UsageError{Err: err}
	}
	return a.Call(func(c *base.Client) error {
		if _, err := c.Node.Version(ctx, &longshorev1.VersionRequest{}); err != nil {
			return err
		}
		token := rand.Text()
		s, err := page.New(page.Options{Conn: c.Conn, Token: token, Actions: cfg.Actions, Logger: slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err != nil {
			return err
		}
		l, err := listen(ctx, cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
		}
		where := fmt.Sprintf("http://%s/#token=%s\n", l.Addr(), token)
		if filepath.IsAbs(cfg.Listen) {
			where = fmt.Sprintf("%s, http://localhost/#token=%s\n", cfg.Listen, token)
			defer func() { _ = os.Remove(cfg.Listen) }()
		}
		if err := a.Print("%s", where); err != nil {
			return err
		}
		return s.Serve(ctx, page.Bound(l))
	})
}

// listen opens a socket for this user alone, or a port of this machine.
func listen(ctx context.Context, at string) (net.Listener, error) {
	if filepath.IsAbs(at) {
		return control.ListenUnix(ctx, at, 0o600, -1)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", at)
}
