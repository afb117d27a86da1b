package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/grant/document"
	"github.com/longshore/longshore/internal/weaken"
)

// openBoard returns the client of the board. The board's process is started with the first handle for a program.
func openBoard(n *node) (*broker.Client, error) {
	policy, err := document.OpenPolicy(n.cfg.Engine.GrantsPolicy)
	if err != nil {
		return nil, fmt.Errorf("engine.grants_policy: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	n.boardAPI = newBoardAPI(policy.Board, n.log)
	n.boardAPI.board = broker.New(broker.Options{
		Rules: policy.Board, Wanted: n.boardAPI.wanted,
		Dir: filepath.Join(n.cfg.Agent.State, "board"), Command: []string{"/proc/self/exe", broker.Arg}, Environ: weaken.Environ(), Logger: n.log,
		Started: func(ctx context.Context, pid int) {
			settle(ctx, n.log, fmt.Sprintf("longshore-board-%d.scope", pid), pid)
		},
	})
	return n.boardAPI.board, nil
}

// recoverBoard sends the board the processes of containers that an earlier agent launched without doing so.
func recoverBoard(ctx context.Context, n *node) error {
	return n.board.Recover(ctx, func(container string) int {
		c, err := n.engine.All().Container(ctx, core.ID(container))
		if err != nil || c.State == core.ContainerExited {
			return 0
		}
		return c.Main.Pid
	})
}

func boardFinding(ctx context.Context, n *node) control.Finding {
	s, there := n.board.Status(ctx)
	if !there {
		return ok("board", "not running, because no program has a handle")
	}
	return ok("board", "process %d is confined by %s; %d handles of %d containers, %d servers", s.PID, s.Confinement, s.Handles, s.Containers, s.Servers)
}
