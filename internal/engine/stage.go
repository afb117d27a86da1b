package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/networks"
	"github.com/longshore/longshore/internal/engine/stages"
)

// Stages returns the names of all fail points, "verb.stage", one after each stage. For verbs that
// run as lists of stages they are read from those lists. The other verbs list theirs here, and
// CheckedFailPoint refuses a name that is not among them.
func Stages() []string {
	var all []string
	for _, v := range verbs() {
		for _, s := range v.stages {
			all = append(all, v.name+"."+s)
		}
	}
	return all
}

// CheckedFailPoint returns point as Options.FailPoint. It refuses a stage that is not among Stages,
// where no test would die. It is no part of the engine, so that programs without fail points do not
// link the names.
func CheckedFailPoint(point func(stage string) error) func(stage string) error {
	return func(stage string) error {
		if !slices.Contains(Stages(), stage) {
			return fmt.Errorf("stage %s is not among Stages, so no test dies there: %w", stage, errdefs.ErrInternal)
		}
		return point(stage)
	}
}

// verb names a verb and its stages, in their order.
type verb struct {
	name   string
	stages []string
}

func verbs() []verb {
	var t teardown // only the stages' names are used
	names := func(list []stages.Stage, first ...string) []string {
		for _, s := range list {
			first = append(first, s.Name)
		}
		return first
	}
	return []verb{
		{"create_sandbox", names((&sandboxBuild{}).stages())},
		{"create", names((&build{}).stages())},
		{"start", []string{"begin", "launch", "commit"}},
		{"renew", names((&renewal{}).stages())},
		{"exec", []string{"begin", "launch", "commit"}},
		{"stop", []string{"asked", "signalled", "killed", "ended"}},
		{"stop_sandbox", names(t.releaseStages(nil), "containers", "recorded")},
		{"remove", names(t.containerStages(nil), "ended")},
		{"remove_sandbox", names(t.sandboxStages(nil), "containers")},
		{"exit", []string{"begin", "recorded", "acked"}},
		{"pull", []string{"begin", "pulled", "recorded"}},
		{networks.VerbAttach, networks.Stages()[networks.VerbAttach]},
		{networks.VerbDetach, networks.Stages()[networks.VerbDetach]},
		{networks.VerbEgress, networks.Stages()[networks.VerbEgress]},
	}
}

// pipeline begins a verb on an object of owner.
func (e *Engine) pipeline(ctx context.Context, owner core.Owner, verb string) *stages.Pipeline {
	return stages.New(ctx, &e.stages, owner, verb)
}

// notOurs replaces the class AlreadyExists in a port's error, because a create that returns it
// also returns the first object.
func notOurs(err error) error {
	if errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("%v: %w", err, errdefs.ErrFailedPrecondition) //nolint:errorlint // the chain must not contain AlreadyExists
	}
	return err
}
