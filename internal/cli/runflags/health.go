package runflags

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// healthFlags are the flags of the health check.
type healthFlags struct {
	cmd, onFailure                                string
	interval, timeout, startPeriod, startInterval time.Duration
	retries                                       int32
	none                                          bool
}

func (f *healthFlags) define(fl *pflag.FlagSet) {
	fl.StringVar(&f.cmd, "health-cmd", "", "line for the shell, or JSON list, that tests whether the program works (default: the image's)")
	fl.DurationVar(&f.interval, "health-interval", 0, "time between two tests (default: the image's, or 30s)")
	fl.DurationVar(&f.timeout, "health-timeout", 0, "time that a test may take (default: the image's, or 30s)")
	fl.Int32Var(&f.retries, "health-retries", 0, "failures in a row that make the program unhealthy (default: the image's, or 3)")
	fl.DurationVar(&f.startPeriod, "health-start-period", 0, "time after the start before failures count")
	fl.DurationVar(&f.startInterval, "health-start-interval", 0, "time between two tests in the start period (default: the image's, or 5s)")
	fl.BoolVar(&f.none, "no-healthcheck", false, "do not test whether the program works, even if the image has a test")
	fl.StringVar(&f.onFailure, "health-on-failure", "none", "action when the program becomes unhealthy: none, stop, kill")
}

// fill sets the request's health check from the flags.
func (f *healthFlags) fill(r *longshorev1.CreateRequest) error {
	const none = "none"
	if f.onFailure != none {
		r.OnUnhealthy = f.onFailure
	}
	h := &longshorev1.HealthCheck{Retries: f.retries}
	for _, d := range []struct {
		flag  string
		value time.Duration
		to    **durationpb.Duration
	}{
		{"interval", f.interval, &h.Interval}, {"timeout", f.timeout, &h.Timeout}, {"start-period", f.startPeriod, &h.StartPeriod}, {"start-interval", f.startInterval, &h.StartInterval},
	} {
		switch {
		case d.value < 0 || d.value > 0 && d.value < time.Millisecond:
			return fmt.Errorf("--health-%s %v: it must be at least 1ms", d.flag, d.value)
		case d.value > 0:
			*d.to = durationpb.New(d.value)
		}
	}
	if f.retries < 0 {
		return fmt.Errorf("--health-retries %d is negative", f.retries)
	}
	given := f.cmd != "" || f.retries > 0 || h.GetInterval() != nil || h.GetTimeout() != nil || h.GetStartPeriod() != nil || h.GetStartInterval() != nil
	switch {
	case f.none && given:
		return errors.New("--no-healthcheck cannot be combined with another flag of the health check")
	case f.none, f.cmd == none:
		h = &longshorev1.HealthCheck{Test: []string{"NONE"}}
	case !given:
		return nil
	case strings.HasPrefix(strings.TrimSpace(f.cmd), "["):
		var list []string
		if err := json.Unmarshal([]byte(f.cmd), &list); err != nil || len(list) == 0 {
			return fmt.Errorf("--health-cmd %q begins like a JSON list of words but is not one", f.cmd)
		}
		if h.Test = list; list[0] != "CMD" && list[0] != "CMD-SHELL" && list[0] != "NONE" {
			h.Test = append([]string{"CMD"}, list...)
		}
	case f.cmd != "":
		h.Test = []string{"CMD-SHELL", f.cmd}
	}
	r.Health = h
	return nil
}
