// Package face defines a face: a protocol server on the agent for one kind of orchestrator.
//
// It must not know any protocol; each has a package of its own below this one. Nor
// may it link gRPC or Prometheus, which a face may do without: a test of
// internal/arch keeps it so.
package face

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/longshore/longshore/internal/caller"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Face is one protocol server.
type Face interface {
	// Name is the face's name in the config, the log and the metrics.
	Name() string
	// Serve answers on the listeners until ctx ends, which is no error, or until one of them fails.
	// It closes them. Calls in flight when ctx ends have a moment to finish and are then cut off. A
	// face that dials out is called without listeners; one that listens refuses that.
	Serve(ctx context.Context, listeners ...net.Listener) error
}

// Metrics counts a face's calls; *obs.Metrics implements it.
type Metrics interface {
	// Request counts one call. Op and code must come from closed sets.
	Request(face, op, code string, took time.Duration)
	// Panic counts a recovered panic of a handler.
	Panic(face string)
}

// Deps are the parameters of every face's constructor.
type Deps struct {
	Engine  *engine.Client // as this face's owner; required
	Logger  *slog.Logger   // required
	Metrics Metrics        // nil counts nothing
	Version string         // of the agent; "" is a development build
	// Limits gets the limits of the face's connections, for metrics and doctor; it may be nil.
	Limits *connlimit.Table
	// Audit gets the calls that change something; nil gets none.
	Audit caller.Audit
	// KV is the face's own key-value store, which survives a reboot; nil for a face that
	// stores nothing there.
	KV core.KV
}

// Counting returns d.Metrics, or one that counts nothing when there is none.
func (d Deps) Counting() Metrics {
	if d.Metrics == nil {
		return uncounted{}
	}
	return d.Metrics
}

type uncounted struct{}

func (uncounted) Request(string, string, string, time.Duration) {}

func (uncounted) Panic(string) {}
