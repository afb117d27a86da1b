package mesos

import (
	"testing"
	"time"
)

func TestDurationFlag(t *testing.T) {
	for d, want := range map[Duration]string{
		DefaultConfig().GCDelay: "1weeks", Duration(36 * time.Hour): "36hrs", Duration(48 * time.Hour): "2days", Duration(90 * time.Second): "90secs", Duration(time.Minute): "1mins", Duration(1500 * time.Microsecond): "1500us",
		Duration(time.Millisecond): "1ms", 1: "1ns", 0: "0ns",
	} {
		if got := d.Flag(); got != want {
			t.Errorf("%s: %s, want %s", time.Duration(d), got, want)
		}
	}
	var d Duration
	if err := d.UnmarshalText([]byte("1h30m")); err != nil || d != Duration(90*time.Minute) {
		t.Errorf("%v, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("1weeks")); err == nil {
		t.Error("1weeks is taken")
	}
}
