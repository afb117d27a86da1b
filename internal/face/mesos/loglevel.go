package mesos

import (
	"log/slog"
	"sync"
	"time"
)

// logLevel changes the level of the log for a time, in Mesos' numbers: 0 is the
// configured level, anything above is debug.
type logLevel struct {
	log *slog.LevelVar

	mu         sync.Mutex // guards level, configured, timer
	level      uint32
	configured slog.Level
	timer      *time.Timer
}

// newLogLevel returns the level of log, which is now as configured. With nil, changes
// are remembered but have no effect.
func newLogLevel(log *slog.LevelVar) *logLevel {
	if log == nil {
		log = new(slog.LevelVar)
	}
	return &logLevel{log: log, configured: log.Level()}
}

// get returns the level in force.
func (l *logLevel) get() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level
}

// set sets the level for d; then the configured level returns.
func (l *logLevel) set(level uint32, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(level)
	if level == 0 {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(max(d, 0), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer == t { // no later set has replaced the timer
			l.setLocked(0)
		}
	})
	l.timer = t
}

// setLocked sets the level and stops the timer; mu must be held.
func (l *logLevel) setLocked(level uint32) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.level = level
	l.log.Set(l.configured)
	if level > 0 {
		l.log.Set(min(l.configured, slog.LevelDebug))
	}
}

// reset returns to the configured level.
func (l *logLevel) reset() { l.set(0, 0) }
