package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/handover"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/sleep/ledger"
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
		{Name: "sleep", Oldest: ledger.Format, Number: ledger.Format},
		{Name: "handover", Oldest: weaken.Mark("handover-oldest", handover.Number), Number: weaken.Mark("handover", handover.Number)},
		{Name: "names", Oldest: names.Protocol, Number: names.Protocol},
		{Name: "board", Oldest: broker.Protocol, Number: broker.Protocol},
	}
}

// keeperFormat is the name of the keeper's protocol in a program's statement. It is no format that an agent leaves, but one that the
// next agent must share with the keeper that runs.
const keeperFormat = "keeper"

// Formats returns the statement of this program about its formats, which the agent before it reads.
func Formats(release string) string {
	oldest, newest := keeper.Spoken()
	return handover.State(release, append(formats(), handover.Format{Name: keeperFormat, Oldest: oldest, Number: newest}))
}

// maxStatement is the limit of another program's statement.
const maxStatement = 16 << 10

// mayRead returns FailedPrecondition if the program at path could not continue this agent's work, because it does not read a format, or
// because maySpeak, which gets the oldest and the newest version of the keeper's protocol that it speaks, returns that.
func mayRead(ctx context.Context, path string, maySpeak func(ctx context.Context, oldest, newest int) error) error {
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
	for _, f := range list {
		if f.Name != keeperFormat {
			continue
		}
		if err := maySpeak(ctx, f.Oldest, f.Number); err != nil {
			return fmt.Errorf("upgrade of the agent to longshore of release %s: %w", release, err)
		}
	}
	return nil
}
