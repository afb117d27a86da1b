package agent

import (
	"context"
	"time"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
)

// redundancy watches whether containers survive the death of any two of agent, keeper and nest.
type redundancy struct{ n *node }

// keeperPatience is how long a keeper may take to answer. The nest starts another one within less.
const keeperPatience = 2 * time.Second

// changed has the finding checked at once. It never blocks.
func (r redundancy) changed() {
	select {
	case r.n.exposed <- struct{}{}:
	default: // it is to be checked already
	}
}

func (r redundancy) finding(ctx context.Context) control.Finding {
	ctx, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	return redundancyOf(r.n.keeper.Status(ctx))
}

func redundancyOf(s core.SupervisorStatus, err error) control.Finding {
	const name, hint = "redundancy", "containers keep running; see keeper/keeper.log in the state directory"
	switch {
	case err != nil:
		return doctor.Fail(name, hint, "the nest has no keeper that answers: if the nest dies too, exits are lost: %v", err)
	case s.Exposed() != "":
		return doctor.Warn(name, hint+"; a keeper of an earlier release has no copies", "%s", s.Exposed())
	}
	return doctor.OK(name, "containers survive the death of any two of agent, keeper and nest")
}
