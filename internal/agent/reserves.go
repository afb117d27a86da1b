package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/longshore/longshore/internal/dbfile"
)

// The reserves are small: they have room for the records of a start, some removals and a prune.
const (
	rootReserveBytes  = 4 << 20
	rootReserveFiles  = 64
	stateReserveBytes = 256 << 10 // of memory, where the state directory is a tmpfs
	stateReserveFiles = 32

	reserveInterval = time.Minute // how often a reserve that was released is taken again, if there is room
)

// reserves keep some space of the root and the state directory, so that an agent can start and
// remove objects when nothing else is free.
type reserves struct {
	root, state *dbfile.Reserve
	log         *slog.Logger
}

func newReserves(root, state string, log *slog.Logger) reserves {
	return reserves{
		root:  dbfile.NewReserve(filepath.Join(root, "reserve"), rootReserveBytes, rootReserveFiles),
		state: dbfile.NewReserve(filepath.Join(state, "reserve"), stateReserveBytes, stateReserveFiles),
		log:   log,
	}
}

func (r reserves) fill() {
	for _, one := range []*dbfile.Reserve{r.root, r.state} {
		if err := one.Fill(); err != nil {
			r.log.Warn("could not reserve space for a full disk; will retry", "error", err)
		}
	}
}

// tend fills the reserves until ctx ends.
func (r reserves) tend(ctx context.Context) {
	tick := time.NewTicker(reserveInterval)
	defer tick.Stop()
	for {
		r.fill()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
