// Package restart has the restart policies of containers: docker's, in its words and with its
// delays.
//
// Rules is pure: it decides after an end, a caller's request and a boot, and the engine records the
// decision together with its reason. Package runner below starts the programs when they are due. Neither
// knows a face. Start reading at Rules.Ended.
package restart

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// The delays between an end and the next start; docker's.
const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = time.Minute
	// settled is the length of a run after which the next delay is the first one again.
	settled = 10 * time.Second
)

// maxMax bounds the number of restarts that a policy can name.
const maxMax = 1 << 30

// Parse reads a policy as docker's users write it: no, always, unless-stopped, on-failure or
// on-failure:MAX. "" is no.
func Parse(s string) (core.RestartPolicy, error) {
	name, limit, limited := strings.Cut(s, ":")
	p := core.RestartPolicy{Name: core.RestartName(name)}
	switch p.Name {
	case "no", core.RestartNever:
		p.Name = core.RestartNever
	case core.RestartAlways, core.RestartUnlessStopped:
	case core.RestartOnFailure:
		if !limited {
			return p, nil
		}
		n, err := strconv.Atoi(limit)
		if err != nil || n < 0 || n > maxMax {
			return p, invalid.Errorf("restart policy %q: the maximum of on-failure is a number, as in on-failure:5", s)
		}
		p.Max = n
		return p, nil
	default:
		return p, invalid.Errorf("restart policy %q is none of no, always, unless-stopped, on-failure and on-failure:MAX", s)
	}
	if limited {
		return p, invalid.Errorf("restart policy %q: only on-failure has a maximum", s)
	}
	return p, nil
}

// Format returns the policy in the form that Parse reads.
func Format(p core.RestartPolicy) string {
	switch {
	case p.Name == core.RestartNever:
		return "no"
	case p.Max > 0:
		return string(p.Name) + ":" + strconv.Itoa(p.Max)
	}
	return string(p.Name)
}

// Rules is docker's core.Restarter.
type Rules struct{}

var _ core.Restarter = Rules{}

// wants reports whether the policy starts a program again after an end with a status, restarts
// having been made.
func wants(p core.RestartPolicy, stopped bool, status, restarts int) bool {
	switch p.Name {
	case core.RestartAlways:
		return true
	case core.RestartUnlessStopped:
		return !stopped
	case core.RestartOnFailure:
		return status != 0 && (p.Max == 0 || restarts < p.Max)
	}
	return false
}

// Ended schedules the next start. A program that could not be started is not tried again.
func (Rules) Ended(c *core.Container) {
	r, exit := &c.Restarts, c.Main.Autopsy.Exit
	pending := !r.Due.IsZero()
	r.Due, r.Boot, r.Error = time.Time{}, false, c.Main.Autopsy.Start
	// With a pending restart, an agent that died may have started the program without a record.
	if r.Error != "" || c.Main.Started.IsZero() && !pending {
		return
	}
	if r.Cancelled || !wants(c.Config.Restart, r.Stopped, lastStatus(c), r.Count) {
		return
	}
	switch {
	case r.Down:
		r.Due = exit.At // for the next agent, which follows a boot as a rule
		return
	case r.Delay == 0 || !c.Main.Started.IsZero() && exit.At.Sub(c.Main.Started) >= settled:
		r.Delay = firstDelay
	default:
		r.Delay = min(2*r.Delay, maxDelay)
	}
	r.Count++
	r.Due = exit.At.Add(r.Delay)
}

// Requested records that a caller has signalled the program. The restarts end if the signal is
// SIGKILL or the container's own stop signal; any signal does if the container names none.
// The end of an unhealthy program by SIGKILL is no caller's request: its policy applies.
func (Rules) Requested(c *core.Container, req core.StopRequest) {
	if req.Call == core.UnhealthyCall && req.Signal == int(unix.SIGKILL) {
		return
	}
	r := &c.Restarts
	if req.Call == core.ShutdownCall {
		r.Down = !r.Cancelled
		return
	}
	r.Stopped, r.Down = true, false
	own, err := ocispec.Signal(c.Config.Stop.Signal)
	if req.Stop || req.Signal == int(unix.SIGKILL) || c.Config.Stop.Signal == "" || err != nil || req.Signal == own {
		r.Cancelled, r.Due, r.Boot = true, time.Time{}, false
	}
}

// Started forgets all that was before.
func (Rules) Started(c *core.Container) { c.Restarts = core.Restarts{Ran: true} }

// Booted schedules a start for the present if the policy wants one after a boot: always even if a
// caller had stopped the program, unless-stopped if none had, on-failure if its last end was one.
func (Rules) Booted(c *core.Container, at time.Time) {
	r := &c.Restarts
	r.Ran = r.Ran || !c.Main.Started.IsZero() || !r.Due.IsZero()
	r.Due, r.Boot, r.Delay = time.Time{}, false, 0
	if r.Ran && wants(c.Config.Restart, r.Stopped, lastStatus(c), r.Count) {
		*r = core.Restarts{Due: at, Boot: true, Ran: true, Stopped: r.Stopped}
	}
}

// lastStatus returns the status of a container's last end for its policy.
func lastStatus(c *core.Container) int {
	switch {
	case c.Restarts.Down:
		return core.LostCode // as of a program that a boot has ended
	case c.Main.Autopsy != nil:
		return c.Main.Autopsy.Exit.Status()
	}
	return 0
}

// Again schedules the next try of a start that has failed because the holder of a joined namespace does not
// run. The failure may have ended the restarts.
func Again(c *core.Container, cause error, now time.Time) {
	r := &c.Restarts
	r.Error = cause.Error()
	if r.Cancelled || !wants(c.Config.Restart, r.Stopped && !r.Boot, 1, 0) {
		r.Due, r.Boot = time.Time{}, false
		return
	}
	r.Delay = min(max(2*r.Delay, firstDelay), maxDelay)
	r.Due = now.Add(r.Delay)
}

// Failed schedules the next try of a start that has failed, or gives up. The node's own troubles
// pass, such as a keeper that is being replaced, or a network that is not there. After a boot, so
// may all others, but for a program that cannot be executed.
func Failed(c *core.Container, cause error, now time.Time) {
	r := &c.Restarts
	r.Error = cause.Error()
	var refused *core.StartError
	passes := errdefs.IsUnavailable(cause) || errdefs.IsNotFound(cause) || errdefs.IsCanceled(cause) || errdefs.IsDeadlineExceeded(cause) || errdefs.IsAborted(cause)
	if errors.As(cause, &refused) || !passes && !r.Boot {
		r.Due, r.Boot = time.Time{}, false
		return
	}
	r.Delay = min(max(2*r.Delay, firstDelay), maxDelay)
	r.Due = now.Add(r.Delay)
}
