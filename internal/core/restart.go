package core

import (
	"context"
	"time"
)

// RestartName names a kind of restart policy, as docker does.
type RestartName string

// The kinds of restart policies. The zero RestartName is RestartNever.
const (
	RestartNever         RestartName = ""
	RestartOnFailure     RestartName = "on-failure"     // after an end with a status that is not 0
	RestartAlways        RestartName = "always"         // after each end, and after a boot even if a caller had stopped it
	RestartUnlessStopped RestartName = "unless-stopped" // as always, but never if a caller had stopped it
)

// RestartPolicy says when a container's program is started again after its end.
type RestartPolicy struct {
	Name RestartName `json:"name,omitempty"`
	// Max bounds the restarts in a row of RestartOnFailure; 0 is no bound.
	Max int `json:"max,omitempty"`
}

// Restarts is the state of a container's restart policy.
type Restarts struct {
	// Count is how often the policy has started the program since a caller did, the pending restart
	// included.
	Count int `json:"count,omitempty"`
	// Delay is the time between the last end and the restart that followed it.
	Delay time.Duration `json:"delay,omitempty"`
	// Due is the time of the pending restart; zero when there is none.
	Due time.Time `json:"due,omitzero"`
	// Boot says that the pending restart follows a boot of the node.
	Boot bool `json:"boot,omitempty"`
	// Stopped says that a caller has sent the program a signal since the last start by a caller, and
	// Cancelled that this was one that ends the restarts.
	Stopped   bool `json:"stopped,omitempty"`
	Cancelled bool `json:"cancelled,omitempty"`
	// Ran says that the program was started at least once.
	Ran bool `json:"ran,omitempty"`
	// Down says that a shutdown of the node ends the program, which its policy takes for a failure.
	Down bool `json:"down,omitempty"`
	// Error is why the last restart failed; "" when it did not.
	Error string `json:"error,omitempty"`
}

// Restarting reports whether the container's restart policy will start its program again.
func (c *Container) Restarting() bool {
	return !c.Restarts.Due.IsZero() && (c.State == ContainerExited || c.State == ContainerCreated)
}

// Restarter applies the restart policies. Its methods change only Container.Restarts. They are called
// in the transaction that records the reason, so that no crash separates the two.
type Restarter interface {
	// Ended is called when the end of the main process is recorded.
	Ended(c *Container)
	// Requested is called when a caller signals the main process, or would if it had not ended.
	Requested(c *Container, r StopRequest)
	// Started is called when a caller has started the program.
	Started(c *Container)
	// Booted is called when the node was restarted since the program was started.
	Booted(c *Container, at time.Time)
}

// Returner brings durable objects back after a boot of the node.
type Returner interface {
	// Return changes the record of an object that existed before the boot to that of an ended one; ok
	// is false if it has no record.
	Return(tx Tx, o LostObject, at time.Time) (ok bool, err error)
	// Mount mounts the roots of durable containers that are not mounted.
	Mount(ctx context.Context) error
	// Ensure mounts the root of a durable container if it is not mounted. The error says why it cannot
	// be; it may be another one later.
	Ensure(ctx context.Context, c *Container) error
}
