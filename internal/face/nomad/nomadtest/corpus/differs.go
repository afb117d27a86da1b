package corpus

import (
	"strings"
	"testing"
)

// Difference is a difference between our driver and docker's.
type Difference struct {
	Row string // the first cell of its row in docs/conformance.md
	of  func(s Shape) bool
}

func has(key string, kinds ...string) func(Shape) bool {
	return func(s Shape) bool {
		got, ok := s.Keys[key]
		for _, kind := range kinds {
			if strings.Contains(got, kind) {
				return true
			}
		}
		return ok && len(kinds) == 0
	}
}

// Differs lists all differences.
var Differs = []Difference{
	{"`network_mode` of a network that users of docker have made", has("network_mode", "named")},
	{"`mac_address`", has("mac_address")},
	{"`logging` with a driver that ships logs elsewhere", has("logging", "journald", "fluentd")},
	{"`advertise_ipv6_address`", has("advertise_ipv6_address")},
	{"`ipv4_address`, `ipv6_address`", has("ipv4_address")},
	{"`tmpfs`", has("tmpfs")},
	{"`volumes` with a target alone", has("volumes", "anonymous")},
	{"a mount of dockerd's socket", has("volumes", "socket")},
	{"`host-gateway` in the network of a group", func(s Shape) bool {
		return has("extra_hosts", "gateway")(s) && s.Keys["network_mode"] == "" && (s.Group == "bridge" || s.Group == "cni")
	}},
}

// Differs returns the difference of a shape; the zero value for none.
func (s Shape) Differs() Difference {
	for _, d := range Differs {
		if d.of(s) {
			return d
		}
	}
	return Difference{}
}

// Count counts the shapes.
type Count struct {
	all, alike int
	differ     map[string]int
}

// Add counts a shape. diff is the difference between the containers of docker's driver and ours, and why
// is the error of ours. The test fails for a difference that Differs does not list, and for a listed one
// that no longer exists.
func (c *Count) Add(t *testing.T, s Shape, diff, why string) {
	t.Helper()
	c.all++
	switch d := s.Differs(); {
	case d.Row != "":
		if c.differ == nil {
			c.differ = map[string]int{}
		}
		c.differ[d.Row]++
		if diff == "" && !strings.HasPrefix(d.Row, "`logging`") { // where the output goes is no part of Given
			t.Errorf("%s runs as with docker's driver, and corpus.Differs has %s", s.Line, d.Row)
		}
	case diff != "":
		t.Errorf("%s (-docker's +ours): %s\n%s", s.Line, why, diff)
	default:
		c.alike++
	}
}

// Print writes the sum to the test's log.
func (c *Count) Print(t *testing.T) {
	t.Helper()
	t.Logf("%d of %d run as docker's driver runs them", c.alike, c.all)
	for _, d := range Differs {
		if n := c.differ[d.Row]; n > 0 {
			t.Logf("%d differ: %s", n, d.Row)
		}
	}
}
