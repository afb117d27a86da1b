package mesos

import (
	"strconv"
	"time"
)

// Duration is a time.Duration that TOML has as text such as "30s".
type Duration time.Duration

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Flag formats d as Mesos does: in the largest unit that divides it.
func (d Duration) Flag() string {
	for _, u := range []struct {
		name string
		of   time.Duration
	}{{"weeks", week}, {"days", day}, {"hrs", time.Hour}, {"mins", time.Minute}, {"secs", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}} {
		if v := time.Duration(d); v%u.of == 0 && v != 0 {
			return strconv.FormatInt(int64(v/u.of), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}
