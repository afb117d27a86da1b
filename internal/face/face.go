// Package face says what a face is: a protocol server on the agent, by which
// one orchestrator drives the engine.
//
// It must not know any protocol; each has a package of its own below this one.
package face

import (
	"context"
	"log/slog"
	"net"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/obs"
)

// Face is one protocol server.
type Face interface {
	// Name is the face's name in the config, the log and the metrics.
	Name() string
	// Serve answers on the listeners until ctx ends, which is no error, or until
	// one of them fails. It closes them. Calls in flight when ctx ends are given
	// a moment and then cut off.
	Serve(ctx context.Context, listeners ...net.Listener) error
}

// Deps is what every face is made of.
type Deps struct {
	Engine  *engine.Client // as this face's owner; required
	Logger  *slog.Logger   // required
	Metrics *obs.Metrics   // nil counts nothing
	Version string         // of the agent; "" is a development build
	// Limits has the bounds of the face's connections; nil shows them nowhere.
	Limits *connlimit.Table
}
