package dockerhttp

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// Handler answers a request. An error that it returns before it has written anything is the answer, with the status of its class.
type Handler func(w http.ResponseWriter, r *Request) error

// Mux finds the handlers of requests by their methods and decoded paths, with and without a version. Unlike http.ServeMux it has
// names of several segments before further ones, as in /images/{name...}/json, and answers 404 for a method that a path does not have.
// Versions is required.
type Mux struct {
	Versions Range
	// Headers sets headers of all answers, besides those that each has. nil sets none.
	Headers func(http.Header)
	// Status returns the status of an error; nil is Status.
	Status func(error) int
	// Admit returns an error for a request that must not be answered. nil admits all.
	Admit func(*Request) error
	// Around calls handle, which answers a request that was admitted. It may replace r.Request. nil only calls handle.
	Around func(r *Request, handle func() error) error

	routes []route
}

type route struct {
	method, pattern string
	segments        []string
	many            int // the index of the segment that matches several; -1 for none
	literals        int
	handler         Handler
	since           Version
}

// Handle adds a handler. In the pattern {x} is one segment and {x...} one or more, at most once. Patterns with more literal segments
// are preferred.
func (m *Mux) Handle(method, pattern string, h Handler) { m.HandleSince("", method, pattern, h) }

// HandleSince adds a handler of requests of a version or later ones; others get 400.
func (m *Mux) HandleSince(version, method, pattern string, h Handler) {
	r := route{method: method, pattern: pattern, segments: strings.Split(pattern[1:], "/"), many: -1, handler: h}
	if version != "" {
		r.since = MustParse(version)
	}
	for i, s := range r.segments {
		switch {
		case strings.HasSuffix(s, "...}"):
			r.many = i
		case !strings.HasPrefix(s, "{"):
			r.literals++
		}
	}
	at, _ := slices.BinarySearchFunc(m.routes, r, func(a, b route) int { return cmp.Or(b.literals-a.literals, -1) })
	m.routes = slices.Insert(m.routes, at, r)
}

// Routes returns the methods and patterns of all handlers, such as "GET /info", sorted.
func (m *Mux) Routes() (list []string) {
	for _, r := range m.routes {
		list = append(list, r.method+" "+r.pattern)
	}
	slices.Sort(list)
	return list
}

// match returns the values of the pattern's names in a path.
func (r *route) match(path []string) (map[string]string, bool) {
	if r.many < 0 && len(path) != len(r.segments) || len(path) < len(r.segments) {
		return nil, false
	}
	vars := map[string]string{}
	at := 0
	for i, s := range r.segments {
		part := path[at]
		at++
		if i == r.many {
			end := len(path) - (len(r.segments) - 1 - i)
			part, at = strings.Join(path[i:end], "/"), end
		}
		if name, ok := strings.CutPrefix(s, "{"); ok {
			if strings.Trim(part, "/") == "" {
				return nil, false
			}
			vars[strings.TrimRight(name, ".}")] = part
		} else if s != part {
			return nil, false
		}
	}
	return vars, true
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	h := w.Header()
	h.Set("Api-Version", m.Versions.Max.String())
	h.Set("Docker-Experimental", "false")
	h.Set("Ostype", "linux")
	if m.Headers != nil {
		m.Headers(h)
	}
	r := &Request{Request: in, API: m.Versions.Max}
	if err := m.serve(w, r); err != nil {
		m.refuse(w, r, err)
	}
}

func (m *Mux) serve(w http.ResponseWriter, r *Request) error {
	v, path, err := m.Versions.Cut(r.URL.Path)
	r.API, r.Path = v, path
	found := m.find(r)
	switch {
	case found == nil && r.Method == http.MethodOptions:
		w.WriteHeader(http.StatusOK)
		return nil
	case found == nil:
		return errNoPage
	}
	if err != nil {
		return err
	}
	if r.API.Less(found.since) {
		return tooOldFor(r, found.since)
	}
	if m.Admit != nil {
		if err := m.Admit(r); err != nil {
			return err
		}
	}
	if m.Around == nil {
		return found.handler(w, r)
	}
	return m.Around(r, func() error { return found.handler(w, r) })
}

// find finds the route of a request, and sets the request's pattern and variables.
func (m *Mux) find(r *Request) *route {
	if !strings.HasPrefix(r.Path, "/") {
		return nil
	}
	path := strings.Split(r.Path[1:], "/")
	for i := range m.routes {
		if m.routes[i].method != r.Method {
			continue
		}
		if vars, ok := m.routes[i].match(path); ok {
			r.Vars, r.Route = vars, m.routes[i].method+" "+m.routes[i].pattern
			return &m.routes[i]
		}
	}
	return nil
}
