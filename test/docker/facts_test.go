package docker_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// facts holds the comparable parts of an answer: kinds of JSON members, statuses, headers and texts by their paths.
type facts map[string]string

// headers are the header fields that are compared by value.
var headers = []string{
	"Content-Type", "Api-Version", "Ostype", "Docker-Experimental", "Server", "Cache-Control", "Pragma", "Builder-Version", "Swarm", "Allow", "Warning",
	"Access-Control-Allow-Origin", "Content-Encoding", "Connection", "Upgrade", "Trailer", "Location",
}

// idText are texts that differ with each object, and their names.
var idText = []struct {
	old  *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9:]+)`), "TIME"},
	{regexp.MustCompile(`\bDocker/[0-9][^ ]* `), "Docker/VERSION "},
	{regexp.MustCompile(`\b127\.0\.0\.1:[0-9]+\b|\b10\.96\.0\.[0-9]+:[0-9]+\b`), "REGISTRY"},
	{regexp.MustCompile(`/tmp/[^ :"]+`), "PATH"},
}

// plain replaces texts that differ with each object and side.
func (s *side) plain(text string) string {
	for _, id := range idText {
		text = id.old.ReplaceAllString(text, id.with)
	}
	return text
}

func (s *side) factsOf(st step, r reply) facts {
	f := facts{"status": fmt.Sprint(r.status)}
	if r.err != nil {
		f["error"] = s.plain(r.err.Error())
	}
	for _, name := range headers {
		if v := r.header.Values(name); len(v) > 0 {
			f["header "+name] = s.plain(strings.Join(v, ", "))
		}
	}
	if stat := r.header.Get("X-Docker-Container-Path-Stat"); stat != "" {
		f["header X-Docker-Container-Path-Stat"] = pathStat(stat)
	}
	if method, _, _ := strings.Cut(st.do, " "); method == "HEAD" {
		return f
	}
	as := st.as
	switch media := r.header.Get("Content-Type"); {
	case as != "" && r.status < 400:
	case len(r.body) == 0:
		f["body"] = "none"
		return f
	case media == "application/json":
		as = "json"
	case strings.HasPrefix(media, "application/vnd.docker."):
		as = "frames"
	case media == "application/x-tar":
		as = "tar"
	default:
		as = "text"
	}
	switch as {
	case "json":
		s.jsonFacts(f, st, r)
	case "frames":
		f["body"] = s.plain(frames(r.body))
	case "events":
		f["body"] = s.plain(events(r.body))
	case "progress":
		f["body"] = s.plain(progress(r.body))
	case "tar":
		f["body"] = s.plain(tarList(r.body))
	case "head":
	default:
		f["body"] = s.plain(string(r.body))
	}
	return f
}

// jsonFacts adds the members of the documents of a body.
func (s *side) jsonFacts(f facts, st step, r reply) {
	d := json.NewDecoder(bytes.NewReader(r.body))
	n := 0
	for {
		var doc any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			f["body"] = "no JSON: " + s.plain(string(r.body))
			return
		}
		n++
		ordered(doc)
		s.kinds(f, "$", doc)
		delete(f, "$.GitCommit") // a program that was built outside of a repository has none
		if m, ok := doc.(map[string]any); ok && r.status >= 400 {
			f["$.message"] = s.plain(fmt.Sprint(m["message"]))
		}
		for _, path := range strings.Fields(st.exact) {
			s.values(f, "$", doc, strings.Split(path, "."))
		}
	}
	f["documents"] = fmt.Sprint(n)
}

// kinds adds the kinds of a value and of its members.
func (s *side) kinds(f facts, path string, doc any) {
	kind := ""
	switch v := doc.(type) {
	case nil:
		kind = "null"
	case bool:
		kind = "boolean"
	case float64:
		kind = "number"
	case string:
		switch v {
		case "":
			kind = "empty string"
		case "0001-01-01T00:00:00Z":
			kind = "zero time"
		default:
			kind = "string"
		}
	case []any:
		kind = fmt.Sprintf("list of %d", len(v))
		for _, x := range v {
			s.kinds(f, path+"[]", x)
		}
	case map[string]any:
		kind = "object"
		for key, x := range v {
			s.kinds(f, path+"."+s.plain(key), x)
		}
	}
	if old := f[path]; old != "" && !slices.Contains(strings.Split(old, " or "), kind) {
		all := append(strings.Split(old, " or "), kind)
		slices.Sort(all)
		kind = strings.Join(all, " or ")
	}
	f[path] = kind
}

// ordered sorts the lists of a document that have no order: dockerd takes them from maps.
func ordered(doc any) {
	switch d := doc.(type) {
	case map[string]any:
		for _, x := range d {
			ordered(x)
		}
	case []any:
		for _, x := range d {
			ordered(x)
		}
		key := func(x any) string {
			m, ok := x.(map[string]any)
			if !ok {
				return ""
			}
			for _, name := range []string{"Destination", "Scope", "Kind", "PrivatePort"} {
				if _, ok := m[name]; ok {
					return fmt.Sprint(m["Destination"], m["Name"], m["Path"], m["PrivatePort"], m["IP"], m["Type"])
				}
			}
			return ""
		}
		slices.SortStableFunc(d, func(a, b any) int { return strings.Compare(key(a), key(b)) })
	}
}

// values adds the values at a path; "*" is every element or member.
func (s *side) values(f facts, at string, doc any, path []string) {
	if members, ok := doc.(map[string]any); ok && len(path) == 0 && len(members) > 0 {
		path = []string{"*"}
	}
	if len(path) == 0 {
		text, _ := json.Marshal(doc) // a decoded value
		f["value of "+at] = s.plain(string(text))
		return
	}
	switch d := doc.(type) {
	case map[string]any:
		if path[0] != "*" {
			s.values(f, at+"."+path[0], d[path[0]], path[1:])
			return
		}
		for key, x := range d {
			s.values(f, at+"."+s.plain(key), x, path[1:])
		}
	case []any:
		for i, x := range d {
			if path[0] == "*" || path[0] == fmt.Sprint(i) {
				s.values(f, fmt.Sprintf("%s.%d", at, i), x, path[1:])
			}
		}
	}
}

// difference is one path of an answer at which the two sides differ.
type difference struct{ path, docker, ours string }

// compare returns the differences of two answers. Those of answers with different statuses are the statuses and messages only.
func compare(docker, ours facts) (list []difference) {
	if docker["status"] != ours["status"] {
		return []difference{{"status", strings.TrimSpace(docker["status"] + " " + docker["$.message"]), strings.TrimSpace(ours["status"] + " " + ours["$.message"])}}
	}
	paths := slices.Sorted(maps.Keys(docker))
	for p := range ours {
		if _, ok := docker[p]; !ok {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	var above []string // the paths of different parents; their members need no line
	for _, p := range paths {
		if docker[p] == ours[p] || slices.ContainsFunc(above, func(a string) bool { return strings.HasPrefix(p, a+".") || strings.HasPrefix(p, a+"[") }) {
			continue
		}
		if p == "body" || p == "transcript" {
			list = append(list, lines(p, docker[p], ours[p])...)
			continue
		}
		list = append(list, difference{p, docker[p], ours[p]})
		above = append(above, p)
	}
	return list
}

// lines returns the lines that only one of two texts has, in order.
func lines(path, docker, ours string) (list []difference) {
	a, b := strings.Split(docker, "\n"), strings.Split(ours, "\n")
	if len(a) == 1 || len(b) == 1 {
		return []difference{{path, docker, ours}}
	}
	common := make([][]int, len(a)+1) // the lengths of the longest common sequences of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			list = append(list, difference{path: path, docker: a[i]})
			i++
		default:
			list = append(list, difference{path: path, ours: b[j]})
			j++
		}
	}
	return list
}

// frames decodes multiplexed output; consecutive frames of a stream are joined.
func frames(body []byte) string {
	var out strings.Builder
	last := byte(255)
	for len(body) > 0 {
		if len(body) < 8 || body[0] > 3 || body[1] != 0 || body[2] != 0 || body[3] != 0 {
			return out.String() + fmt.Sprintf("[raw]%q", body)
		}
		n := int(binary.BigEndian.Uint32(body[4:]))
		if len(body) < 8+n {
			return out.String() + "[cut frame]"
		}
		if body[0] != last {
			fmt.Fprintf(&out, "[%d]", body[0])
			last = body[0]
		}
		out.Write(body[8 : 8+n])
		body = body[8+n:]
	}
	return out.String()
}

// events is one line for each event: its type, action and the names of its attributes.
func events(body []byte) string {
	var list []string
	d := json.NewDecoder(bytes.NewReader(body))
	for {
		var out strings.Builder
		var e struct {
			Type, Action, Scope string
			Status, From, ID    *string
			Actor               struct {
				ID         string
				Attributes map[string]string
			}
			Time, TimeNano int64
		}
		if err := d.Decode(&e); err != nil {
			if !errors.Is(err, io.EOF) {
				list = append(list, "no event: "+err.Error())
			}
			return strings.Join(list, "\n")
		}
		fmt.Fprintf(&out, "%s %s %v", e.Type, e.Action, slices.Sorted(maps.Keys(e.Actor.Attributes)))
		if e.Actor.ID == "" || e.Scope != "local" || e.Time == 0 || e.TimeNano/1e9 != e.Time {
			fmt.Fprintf(&out, " id %q scope %q time %d %d", e.Actor.ID, e.Scope, e.Time, e.TimeNano)
		}
		for name, p := range map[string]*string{"status": e.Status, "id": e.ID, "from": e.From} {
			if p == nil && e.Type == "container" {
				fmt.Fprintf(&out, " without %s", name)
			}
		}
		list = append(list, out.String())
		// dockerd sends stop and die in either order.
		if n := len(list); n > 1 && strings.HasPrefix(list[n-1], "container die") && strings.HasPrefix(list[n-2], "container stop") {
			list[n-1], list[n-2] = list[n-2], list[n-1]
		}
	}
}

// progress is one line for each change of status; those that count bytes are left out: their number depends on the
// machine's speed.
func progress(body []byte) string {
	var out strings.Builder
	d := json.NewDecoder(bytes.NewReader(body))
	for {
		var m map[string]any
		if err := d.Decode(&m); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintf(&out, "no JSON: %v\n", err)
			}
			return out.String()
		}
		switch m["status"] {
		case "Downloading", "Extracting", "Waiting", "Verifying Checksum", "Pushing", "Loading layer":
			continue
		}
		text, _ := json.Marshal(m)
		out.Write(append(text, '\n'))
	}
}

// tarList is one line for each entry of an archive, without the times.
func tarList(body []byte) string {
	var list []string
	tr := tar.NewReader(bytes.NewReader(body))
	for {
		h, err := tr.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				list = append(list, "no archive: "+err.Error())
			}
			return strings.Join(list, "\n")
		}
		list = append(list, fmt.Sprintf("%c %s %o %d:%d %d %s", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, h.Size, h.Linkname))
	}
}

// TestCompare checks that a comparison finds each kind of difference.
func TestCompare(t *testing.T) {
	s := newSide("test", "", nil, nil)
	of := func(st step, status int, body string) facts {
		return s.factsOf(st, reply{status: status, body: []byte(body), header: map[string][]string{"Content-Type": {"application/json"}}})
	}
	for _, c := range []struct {
		docker, ours facts
		want         string
	}{
		{of(step{}, 200, `{"a":[],"b":{"c":1}}`), of(step{}, 200, `{"a":[],"b":{"c":2}}`), ``},
		{of(step{}, 200, `{"a":[]}`), of(step{}, 200, `{"a":null}`), `[{$.a list of 0 null}]`},
		{of(step{}, 200, `{"a":{"b":1}}`), of(step{}, 200, `{}`), `[{$.a object }]`},
		{of(step{}, 200, `[{"a":1},{"a":""}]`), of(step{}, 200, `[{"a":1},{"a":2}]`), `[{$[].a empty string or number number}]`},
		{of(step{}, 404, `{"message":"No such x"}`), of(step{}, 404, `{"message":"no such x"}`), `[{$.message No such x no such x}]`},
		{of(step{}, 404, `{"message":"a"}`), of(step{}, 409, `{"message":"a"}`), `[{status 404 a 409 a}]`},
		{of(step{exact: "a.b"}, 200, `{"a":{"b":"x"}}`), of(step{exact: "a.b"}, 200, `{"a":{"b":"y"}}`), `[{value of $.a.b "x" "y"}]`},
		{
			of(step{}, 200, `{"0000000000000000000000000000000000000000000000000000000000000001":1}`),
			of(step{}, 200, `{"0000000000000000000000000000000000000000000000000000000000000002":1}`), ``,
		},
		{of(step{}, 200, `{} {}`), of(step{}, 200, `{}`), `[{documents 2 1}]`},
	} {
		got := ""
		if d := compare(c.docker, c.ours); len(d) > 0 {
			got = fmt.Sprint(d)
		}
		if got != c.want {
			t.Errorf("%v and %v differ by %s, want %s", c.docker, c.ours, got, c.want)
		}
	}
	if got := frames([]byte("\x01\x00\x00\x00\x00\x00\x00\x02ab\x01\x00\x00\x00\x00\x00\x00\x01c\x02\x00\x00\x00\x00\x00\x00\x01d")); got != "[1]abc[2]d" {
		t.Errorf("frames: %q", got)
	}
}
