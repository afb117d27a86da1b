package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/weaken"
)

// formats are those that an agent leaves for the next one. docs/formats.md has the rule for their numbers.
func formats() []handover.Format {
	stored := func(name string) handover.Format {
		return handover.Format{Name: name, Oldest: weaken.Mark("state-oldest", bolt.OldestSchema), Number: bolt.Schema()}
	}
	return []handover.Format{
		stored("durable.db"), stored("live.db"), stored("events.log"),
		{Name: "handover", Oldest: weaken.Mark("handover-oldest", handover.Number), Number: weaken.Mark("handover", handover.Number)},
		{Name: "names", Oldest: names.Protocol, Number: names.Protocol},
		{Name: "board", Oldest: broker.Protocol, Number: broker.Protocol},
	}
}

// Formats returns the statement of this program about its formats, which the agent before it reads.
func Formats(release string) string { return handover.State(release, formats()) }

// maxStatement is the limit of another program's statement.
const maxStatement = 16 << 10

// mayRead returns FailedPrecondition if the program at path could not continue this agent's work, because it does not read a format.
func mayRead(ctx context.Context, path string) error {
	cmd := subprocess.Command(ctx, path, "version", "--formats")
	out := &subprocess.Head{Max: maxStatement}
	cmd.Stdout = out
	if err := subprocess.Run(ctx, cmd); err != nil {
		return fmt.Errorf("upgrade of the agent: %s does not say which formats it reads: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	release, list, err := handover.ParseStatement(strings.TrimSpace(string(out.Bytes())))
	if err != nil {
		return fmt.Errorf("upgrade of the agent: %s: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	if err := handover.Readable(release, list, formats()); err != nil {
		return fmt.Errorf("upgrade of the agent: %w", err)
	}
	return nil
}
