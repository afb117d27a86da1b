package networktest

import "testing"

// ReachList is an egress list with one of the names of NewReachWorld.
const ReachList = "api.example.com:80"

// ReachScript is a shell script for containers on a node with ReachDNS as its configuration. Its output is ReachedAll without an
// egress list and ReachedList with ReachList.
const (
	ReachScript = "for h in api.example.com other.example.com 93.184.215.2; do if nc -w 9 $h 80 >/dev/null 2>&1; then echo reached $h; else echo refused $h; fi; done"
	ReachedAll  = "reached api.example.com\nreached other.example.com\nreached 93.184.215.2\n"
	ReachedList = "reached api.example.com\nrefused other.example.com\nrefused 93.184.215.2\n"
	ReachDNS    = "[network.dns]\nservers = [\"" + WorldDNS + "\"]\n"
)

// NewReachWorld is the world of ReachScript.
func NewReachWorld(t testing.TB) *World {
	t.Helper()
	w := NewWorld(t, "93.184.215.1", "93.184.215.2")
	w.Set("api.example.com", "93.184.215.1")
	w.Set("other.example.com", "93.184.215.2")
	return w
}
