package mesos

import (
	"log/slog"
	"sync"
	"time"
)

// Level is the log's level.
type logLevel struct {
	log *slog.LevelVar

	mu         sync.Mutex // guards level, configured, timer
	level      uint32
	configured slog.Level
	timer      *time.Timer
}

// New returns the level of a log as it is now; a nil one is remembered and
// changes nothing.
func newLogLevel(log *slog.LevelVar) *logLevel {
	if log == nil {
		log = new(slog.LevelVar)
	}
	return &logLevel{log: log, configured: log.Level()}
}

// Get returns the level in force.
func (l *logLevel) get() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level
}

// Set has the level in force for so long; then the configured one is again.
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
		if l.timer == t { // not another Set's by now
			l.setLocked(0)
		}
	})
	l.timer = t
}

// put sets the level and forgets when it was to end; mu must be held.
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

// Reset has the configured level in force.
func (l *logLevel) reset() { l.set(0, 0) }
