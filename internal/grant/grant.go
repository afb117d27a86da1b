package grant

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// Kind is the kind of a grant.
type Kind string

// The kinds of grants. Each is the tag in a document, without the exclamation mark.
const (
	Log      Kind = "container_log" // its input becomes lines of the container's log
	Mount    Kind = "mount"         // a directory or file of one of the request's mounts
	Listen   Kind = "listen"        // a listening socket in the sandbox's network
	Server   Kind = "server"        // a handle on the board that may start servers
	Client   Kind = "client"        // a handle on the board that may connect
	Env      Kind = "env"           // an environment variable, as a value; without a name all of them
	Random   Kind = "random"        // random bytes
	Clock    Kind = "clock"         // the time, and timers
	Secret   Kind = "secret"        // a file with a secret that the orchestrator delivered
	Shutdown Kind = "shutdown"      // becomes readable (end of file) when the container is to stop
)

// Kinds lists all kinds, in the order of the guide.
func Kinds() []Kind {
	return []Kind{Log, Mount, Listen, Server, Client, Env, Random, Clock, Secret, Shutdown}
}

// Protocols of a listener.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Rights are rights to a mount's files.
type Rights uint8

// The rights of a mount. Write includes to create, rename and remove.
const (
	Read Rights = 1 << iota
	Write
	Execute

	AllRights = Read | Write | Execute
)

var rightNames = []struct {
	right Rights
	name  string
}{{Read, "read"}, {Write, "write"}, {Execute, "execute"}}

// ParseRight returns the right that a document calls name.
func ParseRight(name string) (Rights, bool) {
	for _, r := range rightNames {
		if r.name == name {
			return r.right, true
		}
	}
	return 0, false
}

// String returns the rights' names with commas between them.
func (r Rights) String() string {
	var names []string
	for _, n := range rightNames {
		if r&n.right != 0 {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

// Pos is a place in a document; both numbers begin at 1. The zero Pos is no place.
type Pos struct {
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
}

func (p Pos) String() string {
	if p.Line == 0 {
		return ""
	}
	return "line " + strconv.Itoa(p.Line) + ", column " + strconv.Itoa(p.Column)
}

// Error is a fault at a place of a document.
type Error struct {
	Pos  Pos
	Text string
}

func (e *Error) Error() string {
	if e.Pos.Line == 0 {
		return e.Text
	}
	return e.Pos.String() + ": " + e.Text
}

// Errorf returns an Error at pos.
func Errorf(pos Pos, format string, args ...any) *Error {
	return &Error{Pos: pos, Text: fmt.Sprintf(format, args...)}
}

// A Grant is one thing that a document asks for. Only the fields of its kind are set.
type Grant struct {
	Kind Kind `json:"kind"`
	// Name is a mount's path in the container, an environment variable, a secret; for Env, "" is all variables.
	Name string `json:"name,omitempty"`
	// Rights are a mount's. AtMost: if the mount itself has fewer rights, the program gets those; otherwise this is an
	// error.
	Rights Rights `json:"rights,omitempty"`
	AtMost bool   `json:"at_most,omitempty"`
	// Protocol and Port are a listener's.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	// Labels are matched between servers and clients on the board.
	Labels map[string]string `json:"labels,omitempty"`
}

// String returns g as a document would ask for it.
func (g Grant) String() string {
	switch g.Kind {
	case Mount:
		if !g.AtMost || g.Rights != Read|Write {
			return "!mount {path: " + g.Name + ", rights: [" + strings.ReplaceAll(g.Rights.String(), ",", ", ") + "]}"
		}
	case Listen:
		return "!listen {" + g.Protocol + ": " + strconv.Itoa(int(g.Port)) + "}"
	case Server, Client:
		return "!" + string(g.Kind) + " " + labelText(g.Labels)
	}
	if g.Name == "" {
		return "!" + string(g.Kind)
	}
	return "!" + string(g.Kind) + " " + g.Name
}

func labelText(labels map[string]string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, k := range sortedKeys(labels) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(k + ": " + labels[k])
	}
	b.WriteByte('}')
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// Form is the form of a Value.
type Form uint8

// The forms of a Value.
const (
	Null Form = iota
	Bool
	Int
	Float
	String
	Binary
	Sequence
	Mapping
	Granted
)

// Value is a node of a document's tree.
type Value struct {
	Pos  Pos
	Form Form
	// Text is a scalar: "true" or "false", a number as JSON writes it, a string, or a binary's bytes in base64.
	Text  string
	Items []Value // of a Sequence
	// Fields are a Mapping's, in the document's order; names are unique.
	Fields []Field
	Grant  *Grant // of Granted
}

// Field is an entry of a mapping.
type Field struct {
	Pos   Pos
	Name  string
	Value Value
}

// Document is a program's whole argument.
type Document struct {
	Root Value
}

// Limits of a document, which hold for its tree after its aliases are expanded.
const (
	MaxDocument    = 256 << 10 // bytes of YAML; an object's annotations in Kubernetes have no more either
	MaxNodes       = 16 << 10
	MaxDepth       = 64
	MaxArgdata     = 1 << 20 // bytes of JSON
	MaxDescriptors = 128     // fewer than one message on a unix socket can carry, beside the agent's own
	MaxLabels      = 32      // of one handle
	MaxLabel       = 256     // bytes of a label's key or value
)

// Walk calls visit for each grant of v, in the document's order. Path is where it is, such as "mounts.data" or "listen[0]".
func (v *Value) Walk(visit func(path string, v *Value) error) error {
	return v.walk("", visit)
}

func (v *Value) walk(path string, visit func(string, *Value) error) error {
	switch v.Form {
	case Granted:
		return visit(path, v)
	case Sequence:
		for i := range v.Items {
			if err := v.Items[i].walk(path+"["+strconv.Itoa(i)+"]", visit); err != nil {
				return err
			}
		}
	case Mapping:
		for i := range v.Fields {
			under := v.Fields[i].Name
			if path != "" {
				under = path + "." + under
			}
			if err := v.Fields[i].Value.walk(under, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// Clone returns a copy of v that shares nothing with it.
func (v *Value) Clone() Value {
	c := *v
	c.Items, c.Fields, c.Grant = nil, nil, nil
	for i := range v.Items {
		c.Items = append(c.Items, v.Items[i].Clone())
	}
	for i := range v.Fields {
		f := v.Fields[i]
		f.Value = f.Value.Clone()
		c.Fields = append(c.Fields, f)
	}
	if v.Grant != nil {
		g := v.Grant.Clone()
		c.Grant = &g
	}
	return c
}

// Clone returns a copy of g that shares nothing with it.
func (g Grant) Clone() Grant {
	if g.Labels != nil {
		labels := make(map[string]string, len(g.Labels))
		for k, v := range g.Labels {
			labels[k] = v
		}
		g.Labels = labels
	}
	return g
}
