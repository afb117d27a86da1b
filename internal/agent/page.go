package agent

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/ui"
)

// servePage serves the web page until ctx ends; it returns at once when there is no listener. The page is a client of the control
// socket like any other, and is connected to it only while somebody looks.
func servePage(ctx context.Context, n *node, l net.Listener) error {
	if l == nil {
		return nil
	}
	conn, err := ui.Dial(filepath.Join(n.cfg.Agent.State, control.SocketName))
	if err != nil {
		return fmt.Errorf("serve ui: %w", err)
	}
	defer func() { _ = conn.Close() }()
	l, o, err := n.cfg.UI.Secure(l, ui.Options{Conn: conn, Logger: n.log})
	if err != nil {
		return fmt.Errorf("serve ui: %w", err)
	}
	page, err := ui.New(o)
	if err != nil {
		return err
	}
	return page.Serve(ctx, l)
}
