package document

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
)

// Parse reads a document. Each of its errors is a *grant.Error.
func Parse(data []byte) (*grant.Document, error) {
	root, err := read(data)
	if err != nil {
		return nil, err
	}
	r := reader{left: grant.MaxNodes}
	v, err := r.value(root, grant.MaxDepth)
	if err != nil {
		return nil, err
	}
	return &grant.Document{Root: v}, nil
}

var versionDirective = regexp.MustCompile(`^%YAML[ \t]+1\.2([ \t\r]|$)`)

// Read returns the only node of a YAML stream, as the library makes it.
func read(data []byte) (*yaml.Node, error) {
	if len(data) > grant.MaxDocument {
		return nil, grant.Errorf(grant.Pos{}, "the document has %d bytes, at most %d are read", len(data), grant.MaxDocument)
	}
	if err := checkText(data); err != nil {
		return nil, err
	}
	if err := checkDirectives(data); err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(asVersion11(data)))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, grant.Errorf(grant.Pos{Line: 1, Column: 1}, "the document is empty")
	case err != nil:
		return nil, located(data, err)
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return nil, grant.Errorf(grant.Pos{Line: more.Line, Column: more.Column}, "a second document: there can be only one")
	case !errors.Is(err, io.EOF):
		return nil, located(data, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, grant.Errorf(grant.Pos{Line: 1, Column: 1}, "the document is empty")
	}
	return doc.Content[0], nil
}

// CheckText refuses bytes that are no YAML text, with their place, which the library would not tell.
func checkText(data []byte) error {
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return grant.Errorf(grant.Pos{Line: line, Column: column}, "the document is not UTF-8")
		case r < 0x20 && r != '\t' && r != '\n' && r != '\r', r == 0x7f, r >= 0x80 && r < 0xa0 && r != 0x85:
			return grant.Errorf(grant.Pos{Line: line, Column: column}, "control character %U", r)
		}
		i += size
		if column++; r == '\n' {
			line, column = line+1, 1
		}
	}
	return nil
}

// A %TAG directive's text is repeated in the tag of each node that uses it, so a long one would make much of little.
const (
	maxDirectives = 16
	maxDirective  = 256
)

func checkDirectives(data []byte) error {
	for at, n := 0, 0; ; n++ {
		i := bytes.Index(data[at:], []byte("%TAG"))
		if i < 0 {
			return nil
		}
		at += i
		end := bytes.IndexAny(data[at:], "\n\r")
		if end < 0 {
			end = len(data) - at
		}
		if end > maxDirective || n == maxDirectives {
			return grant.Errorf(positionOf(data, at), "at most %d %%TAG directives of at most %d bytes each are read", maxDirectives, maxDirective)
		}
		at += end
	}
}

func positionOf(data []byte, at int) grant.Pos {
	start := 1 + bytes.LastIndexByte(data[:at], '\n')
	return grant.Pos{Line: 1 + bytes.Count(data[:at], []byte("\n")), Column: 1 + utf8.RuneCount(data[start:at])}
}

// AsVersion11 returns data with a directive "%YAML 1.2" as "%YAML 1.1", the only one that the library takes. scalar
// handles the differences between the two.
func asVersion11(data []byte) []byte {
	for at := 0; at < len(data); {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			end = len(data) - at
		}
		line := data[at : at+end]
		if versionDirective.Match(line) {
			out := bytes.Clone(data)
			out[at+bytes.Index(line, []byte("1.2"))+2] = '1'
			return out
		}
		if len(line) > 0 && line[0] != '%' && line[0] != '#' && len(bytes.TrimSpace(line)) > 0 {
			break
		}
		at += end + 1
	}
	return data
}

var libraryLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// Located gives an error of the library its place: the line that it names, and there the first character that is no space.
func located(data []byte, err error) error {
	text := err.Error()
	m := libraryLine.FindStringSubmatch(text)
	pos := grant.Pos{Line: 1, Column: 1}
	if n, convErr := strconv.Atoi(m[1]); convErr == nil && n > 0 {
		pos.Line = n
		lines := bytes.SplitN(data, []byte("\n"), n+1)
		if n <= len(lines) {
			pos.Column = 1 + len(lines[n-1]) - len(bytes.TrimLeft(lines[n-1], " \t"))
		}
	}
	return grant.Errorf(pos, "%s", strings.TrimPrefix(text, m[0]))
}

// A reader makes values of nodes. Left is how many more there may be.
type reader struct {
	left    int
	pattern bool // a policy's rules are read, where names may be grant.Any and ports ranges
}

func place(n *yaml.Node) grant.Pos { return grant.Pos{Line: n.Line, Column: n.Column} }

func (r *reader) value(n *yaml.Node, depth int) (grant.Value, error) {
	pos := place(n)
	if depth == 0 {
		return grant.Value{}, grant.Errorf(pos, "nested deeper than %d", grant.MaxDepth)
	}
	if r.left--; r.left < 0 {
		return grant.Value{}, grant.Errorf(pos, "more than %d nodes, those that aliases repeat counted each time", grant.MaxNodes)
	}
	if n.Kind == yaml.AliasNode {
		if n.Alias == nil {
			return grant.Value{}, grant.Errorf(pos, "alias *%s has no anchor", n.Value)
		}
		return r.value(n.Alias, depth-1)
	}
	if kind, ok, err := kindOf(n); err != nil {
		return grant.Value{}, err
	} else if ok {
		g, err := r.grant(kind, n)
		if err != nil {
			return grant.Value{}, err
		}
		return grant.Value{Pos: pos, Form: grant.Granted, Grant: &g.Grant}, nil
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return scalar(n)
	case yaml.SequenceNode:
		return r.sequence(n, depth)
	case yaml.MappingNode:
		return r.mapping(n, depth)
	}
	return grant.Value{}, grant.Errorf(pos, "this is no value")
}

func (r *reader) sequence(n *yaml.Node, depth int) (grant.Value, error) {
	v := grant.Value{Pos: place(n), Form: grant.Sequence}
	for _, item := range n.Content {
		i, err := r.value(item, depth-1)
		if err != nil {
			return v, err
		}
		v.Items = append(v.Items, i)
	}
	return v, nil
}

func (r *reader) mapping(n *yaml.Node, depth int) (grant.Value, error) {
	v := grant.Value{Pos: place(n), Form: grant.Mapping}
	names := map[string]grant.Pos{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, err := r.key(n.Content[i], names)
		if err != nil {
			return v, err
		}
		f, err := r.value(n.Content[i+1], depth-1)
		if err != nil {
			return v, err
		}
		v.Fields = append(v.Fields, grant.Field{Pos: place(n.Content[i]), Name: name, Value: f})
	}
	return v, nil
}

// Key returns a mapping's key as text: names in JSON are strings. 1 and "1" are the same one.
func (r *reader) key(n *yaml.Node, seen map[string]grant.Pos) (string, error) {
	pos := place(n)
	if r.left--; r.left < 0 {
		return "", grant.Errorf(pos, "more than %d nodes, those that aliases repeat counted each time", grant.MaxNodes)
	}
	if n = deref(n); n.Kind != yaml.ScalarNode {
		return "", grant.Errorf(pos, "a key must be a scalar")
	}
	if kind, ok, err := kindOf(n); err != nil {
		return "", err
	} else if ok {
		return "", grant.Errorf(pos, "!%s cannot be a key", kind)
	}
	if n.Value == "<<" && plain(n) {
		return "", grant.Errorf(pos, "YAML 1.2 has no merge keys: write \"<<\" in quotes if it is a name")
	}
	v, err := scalar(n)
	if err != nil {
		return "", err
	}
	name := v.Text
	if v.Form == grant.Null {
		name = "null"
	}
	if first, ok := seen[name]; ok {
		return "", grant.Errorf(pos, "key %q is already there, at %s", name, first)
	}
	seen[name] = pos
	return name, nil
}
