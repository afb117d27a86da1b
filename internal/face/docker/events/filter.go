package events

import (
	"strings"

	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
)

// The types of objects that have events here.
const (
	Container = "container"
	Image     = "image"
	Network   = "network"
	Volume    = "volume"
)

// byName are the filters that select the events of an object by a part of its id or name at the beginning. Objects of some of
// these types have no events here.
func byName() []string {
	return []string{Container, Network, Volume, "daemon", "plugin", "node", "service", "secret", "config"}
}

// selects reports whether filters select an event. Unknown filters select all. A filter of one type excludes the events of others.
func selects(f dockerhttp.Filters, e *dockertypes.Event) bool {
	for _, typ := range byName() {
		if f.Has(typ) && (e.Type != typ || !f.Prefix(typ, e.Actor.ID) && !f.Prefix(typ, e.Actor.Attributes["name"])) {
			return false
		}
	}
	return f.Exact("type", e.Type) && f.Exact("scope", e.Scope) && f.Labels(e.Actor.Attributes) && selectsAction(f, e.Action) && selectsImage(f, e)
}

// selectsAction compares actions. Those with a text after their names are found by their names alone.
func selectsAction(f dockerhttp.Filters, action string) bool {
	for _, name := range []string{"health_status", "exec_create", "exec_start"} {
		if f.Has("event") && f.Exact("event", name) {
			return f.Prefix("event", action)
		}
	}
	return f.Exact("event", action)
}

// selectsImage compares the image of an event, with and without its tag. Events of containers have one, too.
func selectsImage(f dockerhttp.Filters, e *dockertypes.Event) bool {
	name := e.Actor.Attributes["image"]
	if e.Type == Image {
		name = e.Actor.Attributes["name"]
	}
	return f.Exact(Image, e.Actor.ID, name, untagged(e.Actor.ID), untagged(name))
}

// untagged returns the name of an image without its tag and digest.
func untagged(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}
