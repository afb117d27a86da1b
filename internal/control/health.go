package control

import (
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo"
)

// healthDocument returns a container's health for inspect, with docker's names; nil if it has no health check.
func healthDocument(c core.Container) map[string]any {
	status := solo.HealthStatus(c)
	if status == "" {
		return nil
	}
	log, streak := []map[string]any{}, 0
	if h := c.HealthNow(); h != nil {
		streak = h.Failures
		for _, p := range h.Probes {
			log = append(log, map[string]any{"Start": p.Start, "End": p.End, "ExitCode": p.Code, "Output": p.Output})
		}
	}
	return map[string]any{"Status": status, "FailingStreak": streak, "Log": log}
}

// checkDocument returns a container's health check for inspect, with docker's names; nil if it has none.
func checkDocument(c core.Container) map[string]any {
	check := solo.RecordOf(c).Health
	if check == nil {
		return nil
	}
	return map[string]any{
		"Test": append([]string{"CMD"}, check.Command...), "Interval": check.Interval, "Timeout": check.Timeout, "StartPeriod": check.StartPeriod,
		"StartInterval": check.StartInterval, "Retries": check.Retries,
	}
}
