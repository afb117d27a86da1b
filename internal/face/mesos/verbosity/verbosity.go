// Package verbosity changes how much is logged, for a time, in the numbers of
// Mesos: 0 is as configured, and anything above is debug.
package verbosity

import (
	"log/slog"
	"sync"
	"time"
)

// Level is the log's level.
type Level struct {
	log *slog.LevelVar

	mu    sync.Mutex // guards now, base, timer
	now   uint32
	base  slog.Level
	timer *time.Timer
}

// New returns the level of a log as it is now; a nil one is remembered and
// changes nothing.
func New(log *slog.LevelVar) *Level {
	if log == nil {
		log = new(slog.LevelVar)
	}
	return &Level{log: log, base: log.Level()}
}

// Get returns the level in force.
func (l *Level) Get() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Set has the level in force for so long; then the configured one is again.
func (l *Level) Set(level uint32, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(level)
	if level == 0 {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(max(d, 0), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer == t { // not another Set's by now
			l.put(0)
		}
	})
	l.timer = t
}

// put sets the level and forgets when it was to end; mu must be held.
func (l *Level) put(level uint32) {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.now = level
	l.log.Set(l.base)
	if level > 0 {
		l.log.Set(min(l.base, slog.LevelDebug))
	}
}

// Reset has the configured level in force.
func (l *Level) Reset() { l.Set(0, 0) }
