package docker

import (
	"context"
	"slices"

	"github.com/longshore/longshore/internal/dockerhttp"
)

// routes adds the handlers of all operations.
func (f *Face) routes(m *dockerhttp.Mux) {
	const one = "/containers/{id...}"
	v := verbs{f}
	m.Handle("POST", "/containers/create", f.create)
	m.Handle("GET", "/containers/json", f.list)
	m.Handle("POST", "/containers/prune", f.prune)
	m.Handle("GET", one+"/json", f.inspect)
	m.Handle("DELETE", one, v.remove)
	for name, h := range map[string]dockerhttp.Handler{
		"start": v.start, "stop": v.stop, "restart": v.restart, "kill": v.kill, "pause": v.pause, "unpause": v.unpause, "rename": v.rename,
		"resize": v.resize, "attach": f.attach, "wait": f.wait, "update": v.update, "exec": f.execs.createExec,
	} {
		m.Handle("POST", one+"/"+name, h)
	}
	m.Handle("GET", one+"/logs", f.logs)
	m.Handle("GET", one+"/attach/ws", f.attach)
	a := files{f}
	m.Handle("HEAD", one+"/archive", a.head)
	m.Handle("GET", one+"/archive", a.get)
	m.Handle("PUT", one+"/archive", a.put)
	m.Handle("GET", one+"/changes", a.changes)
	m.Handle("GET", one+"/export", a.export)
	m.Handle("POST", "/commit", f.commit)
	m.Handle("POST", "/exec/{id}/start", f.execs.startExec)
	m.Handle("POST", "/exec/{id}/resize", f.execs.resizeExec)
	m.Handle("GET", "/exec/{id}/json", f.execs.inspectExec)
	for _, part := range f.parts.all {
		part.Routes(m)
	}
}

// readable are the requests of the read socket.
func readable() []string {
	return []string{
		"GET /_ping", "HEAD /_ping", "GET /version", "GET /info", "GET /events", "GET /system/df", "GET /containers/json", "GET /containers/{id...}/json",
		"GET /containers/{id...}/top", "GET /containers/{id...}/stats", "GET /images/json", "GET /images/{name...}/json", "GET /images/{name...}/history",
		"GET /networks", "GET /networks/{id...}", "GET /volumes", "GET /volumes/{name...}",
	}
}

func readableRoute(route string) bool { return slices.Contains(readable(), route) }

type readKey struct{}

// hidesEnv reports whether a request came by the read socket.
func hidesEnv(ctx context.Context) bool {
	hide, _ := ctx.Value(readKey{}).(bool)
	return hide
}
