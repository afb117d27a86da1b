package mesos

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestLevelRevertsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(slog.LevelVar)
		log.Set(slog.LevelWarn)
		l := newLogLevel(log)
		is := func(when string, number uint32, level slog.Level) {
			t.Helper()
			if l.get() != number || log.Level() != level {
				t.Errorf("%s: %d, %s; want %d, %s", when, l.get(), log.Level(), number, level)
			}
		}
		is("at first", 0, slog.LevelWarn)
		l.set(2, time.Minute)
		is("raised", 2, slog.LevelDebug)
		<-time.After(50 * time.Second)
		l.set(1, time.Minute) // the first one's time does not end it
		<-time.After(50 * time.Second)
		synctest.Wait()
		is("raised again", 1, slog.LevelDebug)
		<-time.After(11 * time.Second)
		synctest.Wait()
		is("after its time", 0, slog.LevelWarn)
		l.set(3, time.Hour)
		l.reset()
		is("reset", 0, slog.LevelWarn)
	})
}
