// Package health runs the health checks of containers as docker does.
//
// Check and State are pure: a container's check, the time of the next probe, and the meaning of a
// probe. Monitor runs the probes of one container and stores their results in its record, so that a
// later agent continues; Runner has a Monitor for each running container of an owner. The package
// knows no face, and callers store the Check. Start reading at Settle.
package health

import (
	"cmp"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// The defaults if neither the container nor its image has a value; docker's.
const (
	defaultInterval      = 30 * time.Second
	defaultTimeout       = 30 * time.Second
	defaultStartInterval = 5 * time.Second
	defaultRetries       = 3
)

// Check is a health check in full.
type Check struct {
	Command       []string      `json:"command"`
	Interval      time.Duration `json:"interval"` // from the end of a probe to the next one
	Timeout       time.Duration `json:"timeout"`
	StartPeriod   time.Duration `json:"start_period,omitempty"`
	StartInterval time.Duration `json:"start_interval"` // in place of Interval, in StartPeriod until the first success
	Retries       int           `json:"retries"`        // failures in a row that make a container unhealthy
}

// Settle returns the check of a container: its own one, with missing values from the image's. nil
// means that it has none. A command line is run by the image's shell. InvalidArgument for a test
// that is none of docker's.
func Settle(own *core.HealthCheck, img core.Image) (*Check, error) {
	var h core.HealthCheck
	if img.Health != nil {
		h = *img.Health
	}
	if own != nil {
		if len(own.Test) > 0 {
			h.Test = own.Test
		}
		h.Interval, h.Timeout = cmp.Or(own.Interval, h.Interval), cmp.Or(own.Timeout, h.Timeout)
		h.StartPeriod, h.StartInterval = cmp.Or(own.StartPeriod, h.StartPeriod), cmp.Or(own.StartInterval, h.StartInterval)
		h.Retries = cmp.Or(own.Retries, h.Retries)
	}
	if len(h.Test) == 0 {
		return nil, nil //nolint:nilnil // it has none
	}
	c := &Check{
		Command: h.Test[1:], Interval: timeOr(h.Interval, defaultInterval), Timeout: timeOr(h.Timeout, defaultTimeout),
		StartPeriod: max(h.StartPeriod, 0), StartInterval: timeOr(h.StartInterval, defaultStartInterval), Retries: h.Retries,
	}
	if c.Retries <= 0 {
		c.Retries = defaultRetries
	}
	switch h.Test[0] {
	case "NONE":
		return nil, nil //nolint:nilnil // it has none
	case "CMD":
	case "CMD-SHELL":
		shell := img.Shell
		if len(shell) == 0 {
			shell = []string{"/bin/sh", "-c"}
		}
		c.Command = append(append([]string(nil), shell...), c.Command...)
	default:
		return nil, invalid.Errorf("health check of the kind %q, which is none of NONE, CMD and CMD-SHELL", h.Test[0])
	}
	if len(h.Test) == 1 || c.Command[0] == "" {
		return nil, invalid.Errorf("health check without a command")
	}
	return c, nil
}

// minTime is the shortest time that docker's users can ask for.
const minTime = time.Millisecond

func timeOr(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return max(d, minTime)
}

// Status says whether a container's program works.
type Status string

// The statuses. A container is starting until its first success, or until it is unhealthy.
const (
	Starting  Status = "starting"
	Healthy   Status = "healthy"
	Unhealthy Status = "unhealthy"
)

// State is the result of a container's probes so far. A new one is Starting.
type State struct {
	Status   Status
	Failures int    // in a row, those that count
	Output   string // of the last probe, or why there was none
}

// After is the state after a probe, which was a success or not and said something. age is
// how long the container had been running when the probe began.
func (c *Check) After(s State, ok bool, output string, age time.Duration) State {
	s.Output = output
	switch {
	case ok:
		s.Status, s.Failures = Healthy, 0
	case s.Status == Starting && age < c.StartPeriod: // it does not count
	default:
		s.Failures++
		if s.Failures >= c.Retries {
			s.Status = Unhealthy
		}
	}
	return s
}

// Pause is how long to wait for the next probe of a container that has been running for
// age.
func (c *Check) Pause(s State, age time.Duration) time.Duration {
	if s.Status == Starting && age < c.StartPeriod {
		return c.StartInterval
	}
	return c.Interval
}
