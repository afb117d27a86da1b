// Package docker_test sends the same requests to a dockerd and to the node's Docker Engine API, and compares the answers
// by their statuses, headers, members and types. The requests are tables, one file for each noun; the known differences
// are the table of differs_test.go.
//
// Start at TestBesideDockerd.
package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// scene is a sequence of requests that share containers, networks and volumes. Its objects are removed at its end.
type scene struct {
	name  string
	steps []step
}

// step is one request, or one conversation on a raw connection.
type step struct {
	// do is the method, and the path with its query. Values of the query are encoded when they are sent. {name} is the
	// value that an earlier step kept.
	do string
	// headers are lines such as "X-Registry-Auth: e30".
	headers []string
	// body is sent with the Content-Type application/json unless headers has another one; "@name" is a prepared file.
	body string
	// keep is "name=Member.Member": the value of the member, kept for later steps.
	keep string
	// as is the form of the answer's body: json, frames, events, progress, tar, text or head. "" chooses by Content-Type.
	as string
	// exact lists members to compare by value, such as "State.Status Config".
	exact string
	// until is "Member=value": the request is repeated until its answer has the value.
	until string
	// later names a request in the background. The step with the same name in await compares its answer.
	later, await string
	// play holds a conversation on raw connections and returns its transcript. do names it.
	play func(*side) string
}

// title is the request with its body, for the table of known differences.
func (st step) title() string {
	if st.body == "" || strings.HasPrefix(st.body, "@") || len(st.body) > 200 {
		return st.do
	}
	return st.do + " " + st.body
}

// side is one of the two servers, with the values that the steps kept.
type side struct {
	name, socket string
	http         *http.Client
	vars         map[string]string
	files        map[string][]byte
	waiting      map[string]chan reply
}

// reply is one answer as it came.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// patience bounds the wait for one answer.
const patience = 20 * time.Second

func newSide(name, socket string, vars map[string]string, files map[string][]byte) *side {
	s := &side{name: name, socket: socket, vars: vars, files: files, waiting: map[string]chan reply{}}
	s.http = &http.Client{
		Transport: &http.Transport{
			DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

var placeholder = regexp.MustCompile(`\{[a-z][a-z0-9]*\}`)

// fill replaces {name} by the value that was kept.
func (s *side) fill(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		if name == "{now}" {
			now := time.Now()
			return fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond())
		}
		if value, ok := s.vars[strings.Trim(name, "{}")]; ok {
			return value
		}
		return name
	})
}

// target is the request line's method and target of a step.
func (s *side) target(do string) (method, target string) {
	method, target, _ = strings.Cut(s.fill(do), " ")
	target, query, has := strings.Cut(target, "?")
	if !has {
		return method, target
	}
	parts := strings.Split(query, "&")
	for i, p := range parts {
		key, value, valued := strings.Cut(p, "=")
		if valued {
			parts[i] = key + "=" + url.QueryEscape(value)
		}
	}
	return method, target + "?" + strings.Join(parts, "&")
}

// do sends one request and reads its answer to the end.
func (s *side) do(st step) reply {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	method, target := s.target(st.do)
	var body io.Reader
	if name, file := strings.CutPrefix(st.body, "@"); file {
		body = bytes.NewReader(s.files[name])
	} else if st.body != "" {
		body = strings.NewReader(s.fill(st.body))
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+target, body)
	if err != nil {
		return reply{err: err}
	}
	if st.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range st.headers {
		key, value, _ := strings.Cut(line, ": ")
		if value == "" {
			req.Header.Del(strings.TrimSuffix(key, ":"))
			continue
		}
		req.Header.Set(key, s.fill(value))
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	r := reply{status: resp.StatusCode, header: resp.Header}
	r.body, r.err = io.ReadAll(resp.Body)
	return r
}

// play runs a step and returns its answer: facts by their paths.
func (s *side) play(st step) facts {
	switch {
	case st.play != nil:
		return facts{"transcript": s.plain(st.play(s))}
	case st.await != "":
		select {
		case r := <-s.waiting[st.await]:
			return s.kept(st, r)
		case <-time.After(patience):
			return facts{"error": "no answer"}
		}
	case st.later != "":
		ch := make(chan reply, 1)
		s.waiting[st.later] = ch
		go func() { ch <- s.do(st) }()
		return nil
	case st.until != "":
		deadline, tick := time.Now().Add(patience), time.NewTicker(20*time.Millisecond)
		defer tick.Stop()
		path, want, _ := strings.Cut(st.until, "=")
		for ; ; <-tick.C {
			r := s.do(st)
			var doc any
			_ = json.Unmarshal(r.body, &doc)
			if got := fmt.Sprint(member(doc, path)); got == want || time.Now().After(deadline) {
				return s.kept(st, r)
			}
		}
	}
	return s.kept(st, s.do(st))
}

// kept keeps the step's member of an answer.
func (s *side) kept(st step, r reply) facts {
	if name, path, ok := strings.Cut(st.keep, "="); ok {
		var doc any
		_ = json.Unmarshal(r.body, &doc)
		if text, ok := member(doc, path).(string); ok {
			s.vars[name] = text
		}
	}
	return s.factsOf(st, r)
}

// member is a value inside of a document: members are separated by dots, list elements are numbers.
func member(doc any, path string) any {
	for _, name := range strings.Split(path, ".") {
		switch d := doc.(type) {
		case map[string]any:
			doc = d[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(d) {
				return nil
			}
			doc = d[i]
		default:
			return nil
		}
	}
	return doc
}

// clear removes the objects of a scene.
func (s *side) clear() {
	for name, ch := range s.waiting {
		select {
		case <-ch:
		default:
		}
		delete(s.waiting, name)
	}
	for _, list := range []struct{ list, path, each, query string }{
		{"/containers/json?all=1", "Id", "/containers/", "?force=1&v=1"},
		{"/networks", "Id", "/networks/", ""},
		{"/volumes", "Name", "/volumes/", "?force=1"},
	} {
		var doc any
		_ = json.Unmarshal(s.do(step{do: "GET " + list.list}).body, &doc)
		if m, ok := doc.(map[string]any); ok {
			doc = m["Volumes"]
		}
		all, _ := doc.([]any)
		for _, x := range all {
			switch name := fmt.Sprint(member(x, "Name")); name {
			case "bridge", "host", "none":
			default:
				s.do(step{do: fmt.Sprint("DELETE ", list.each, member(x, list.path), list.query)})
			}
		}
	}
}
