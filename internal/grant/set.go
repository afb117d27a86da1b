package grant

import (
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Any in the place of a name means every name.
const Any = "*"

// Ports is a range of ports, both ends included.
type Ports struct{ From, To uint16 }

// Pattern is a limit of a rule: a Grant with Any or a name as Name, and with a range of Ports.
type Pattern struct {
	Grant
	Ports Ports
}

// Set is a set of allowed grants. The zero Set allows nothing. Sets are a lattice: Meet is the greatest set that both
// contain, Join the least that contains both; equal sets are equal in their fields, too.
type Set struct {
	flags   map[Kind]bool                // Log, Random, Clock, Shutdown
	names   map[Kind]names               // Env, Secret
	mounts  map[string]Rights            // under Any: every mount; a name has an entry if it has more
	listen  map[string][]Ports           // by protocol: sorted, apart by at least one port
	handles map[Kind][]map[string]string // Server, Client: labels that a handle must have; none is part of another
}

// Names is a set of names: all, or some.
type names struct {
	all  bool
	some map[string]bool
}

func (n names) has(name string) bool { return n.all || name != "" && n.some[name] }

// NewSet returns the set that the patterns allow together.
func NewSet(patterns ...Pattern) *Set {
	s := &Set{
		flags: map[Kind]bool{}, names: map[Kind]names{}, mounts: map[string]Rights{},
		listen: map[string][]Ports{}, handles: map[Kind][]map[string]string{},
	}
	for _, p := range patterns {
		s.add(p)
	}
	s.normalize()
	return s
}

// Everything returns the set that allows all that a request can carry.
func Everything() *Set {
	all := Ports{From: 1, To: 65535}
	var patterns []Pattern
	for _, k := range Kinds() {
		switch k {
		case Mount:
			patterns = append(patterns, Pattern{Grant: Grant{Kind: k, Name: Any, Rights: AllRights}})
		case Env, Secret:
			patterns = append(patterns, Pattern{Grant: Grant{Kind: k, Name: Any}})
		case Listen:
			patterns = append(patterns, Pattern{Grant: Grant{Kind: k, Protocol: TCP}, Ports: all}, Pattern{Grant: Grant{Kind: k, Protocol: UDP}, Ports: all})
		default:
			patterns = append(patterns, Pattern{Grant: Grant{Kind: k}})
		}
	}
	return NewSet(patterns...)
}

// Of returns the set that has just the grants of doc.
func Of(doc *Document) *Set {
	var patterns []Pattern
	_ = doc.Root.Walk(func(_ string, v *Value) error {
		p := Pattern{Grant: *v.Grant, Ports: Ports{v.Grant.Port, v.Grant.Port}}
		if p.Kind == Env && p.Name == "" {
			p.Name = Any
		}
		patterns = append(patterns, p)
		return nil
	})
	return NewSet(patterns...)
}

func (s *Set) add(p Pattern) {
	switch p.Kind {
	case Log, Random, Clock, Shutdown:
		s.flags[p.Kind] = true
	case Env, Secret:
		n := s.names[p.Kind]
		if p.Name == Any {
			n.all = true
		} else {
			n.some = maps.Clone(n.some)
			if n.some == nil {
				n.some = map[string]bool{}
			}
			n.some[p.Name] = true
		}
		s.names[p.Kind] = n
	case Mount:
		s.mounts[p.Name] |= p.Rights
	case Listen:
		s.listen[p.Protocol] = append(s.listen[p.Protocol], p.Ports)
	case Server, Client:
		labels := maps.Clone(p.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		s.handles[p.Kind] = append(s.handles[p.Kind], labels)
	}
}

// Normalize brings s into the one form that each set has.
func (s *Set) normalize() {
	for kind, n := range s.names {
		if n.all {
			s.names[kind] = names{all: true}
		} else if len(n.some) == 0 {
			delete(s.names, kind)
		}
	}
	every := s.mounts[Any]
	for name, rights := range s.mounts {
		if name != Any {
			s.mounts[name] = rights | every
			if rights&^every == 0 {
				delete(s.mounts, name)
			}
		} else if rights == 0 {
			delete(s.mounts, name)
		}
	}
	for protocol, ranges := range s.listen {
		if ranges = union(ranges); len(ranges) == 0 {
			delete(s.listen, protocol)
		} else {
			s.listen[protocol] = ranges
		}
	}
	for kind, handles := range s.handles {
		if handles = widest(handles); len(handles) == 0 {
			delete(s.handles, kind)
		} else {
			s.handles[kind] = handles
		}
	}
}

// Union sorts ranges and joins those that touch; a range that ends before its start is empty.
func union(ranges []Ports) []Ports {
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(p Ports) bool { return p.From > p.To })
	slices.SortFunc(ranges, func(a, b Ports) int { return int(a.From) - int(b.From) })
	var out []Ports
	for _, r := range ranges {
		if last := len(out) - 1; last >= 0 && int(r.From) <= int(out[last].To)+1 {
			out[last].To = max(out[last].To, r.To)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// Widest removes label sets that another one with fewer labels includes, and sorts the others.
func widest(handles []map[string]string) []map[string]string {
	var out []map[string]string
	for i, h := range handles {
		kept := true
		for j, other := range handles {
			if i != j && contains(h, other) && (len(other) < len(h) || j < i) {
				kept = false
				break
			}
		}
		if kept {
			out = append(out, h)
		}
	}
	sort.Slice(out, func(i, j int) bool { return labelText(out[i]) < labelText(out[j]) })
	return out
}

// Contains reports whether labels has every label of part.
func contains(labels, part map[string]string) bool {
	for k, v := range part {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Join returns the union of s and t.
func (s *Set) Join(t *Set) *Set {
	return NewSet(append(s.Patterns(), t.Patterns()...)...)
}

// Meet returns the intersection of s and t.
func (s *Set) Meet(t *Set) *Set {
	out := NewSet()
	for kind := range s.flags {
		if t.flags[kind] {
			out.flags[kind] = true
		}
	}
	for kind, n := range s.names {
		out.names[kind] = n.meet(t.names[kind])
	}
	for _, all := range []map[string]Rights{s.mounts, t.mounts} {
		for name := range all {
			out.mounts[name] = s.rights(name) & t.rights(name)
		}
	}
	for protocol, ranges := range s.listen {
		for _, a := range ranges {
			for _, b := range t.listen[protocol] {
				out.listen[protocol] = append(out.listen[protocol], Ports{max(a.From, b.From), min(a.To, b.To)})
			}
		}
	}
	for kind, handles := range s.handles {
		for _, a := range handles {
			for _, b := range t.handles[kind] {
				if both, ok := unite(a, b); ok {
					out.handles[kind] = append(out.handles[kind], both)
				}
			}
		}
	}
	out.normalize()
	return out
}

func (n names) meet(m names) names {
	switch {
	case n.all:
		return m
	case m.all:
		return n
	}
	out := names{some: map[string]bool{}}
	for name := range n.some {
		if m.some[name] {
			out.some[name] = true
		}
	}
	return out
}

// Unite returns the labels of both; there are none if a key has two values.
func unite(a, b map[string]string) (map[string]string, bool) {
	out := maps.Clone(a)
	for k, v := range b {
		if got, ok := out[k]; ok && got != v {
			return nil, false
		}
		out[k] = v
	}
	return out, true
}

func (s *Set) rights(mount string) Rights { return s.mounts[mount] | s.mounts[Any] }

// Allow returns the greatest part of g that s allows, and whether there is one.
func (s *Set) Allow(g Grant) (Grant, bool) {
	g = g.Clone()
	switch g.Kind {
	case Log, Random, Clock, Shutdown:
		return g, s.flags[g.Kind]
	case Env, Secret:
		return g, s.names[g.Kind].has(g.Name)
	case Mount:
		g.Rights &= s.rights(g.Name)
		return g, g.Rights != 0
	case Listen:
		for _, r := range s.listen[g.Protocol] {
			if r.From <= g.Port && g.Port <= r.To {
				return g, true
			}
		}
	case Server, Client:
		for _, h := range s.handles[g.Kind] {
			if contains(g.Labels, h) {
				return g, true
			}
		}
	}
	return g, false
}

// Patterns returns patterns for which NewSet returns s, in a fixed order.
func (s *Set) Patterns() []Pattern {
	var out []Pattern
	for _, kind := range Kinds() {
		if s.flags[kind] {
			out = append(out, Pattern{Grant: Grant{Kind: kind}})
		}
		if n := s.names[kind]; n.all {
			out = append(out, Pattern{Grant: Grant{Kind: kind, Name: Any}})
		} else {
			for _, name := range sortedKeys(n.some) {
				out = append(out, Pattern{Grant: Grant{Kind: kind, Name: name}})
			}
		}
		switch kind {
		case Mount:
			for _, name := range sortedKeys(s.mounts) {
				out = append(out, Pattern{Grant: Grant{Kind: kind, Name: name, Rights: s.mounts[name]}})
			}
		case Listen:
			for _, protocol := range sortedKeys(s.listen) {
				for _, r := range s.listen[protocol] {
					out = append(out, Pattern{Grant: Grant{Kind: kind, Protocol: protocol}, Ports: r})
				}
			}
		case Server, Client:
			for _, labels := range s.handles[kind] {
				out = append(out, Pattern{Grant: Grant{Kind: kind, Labels: labels}})
			}
		}
	}
	return out
}

// String returns p as a policy file has it.
func (p Pattern) String() string {
	if p.Kind == Listen && p.Ports.From != p.Ports.To {
		return "!listen {" + p.Protocol + ": " + strconv.Itoa(int(p.Ports.From)) + "-" + strconv.Itoa(int(p.Ports.To)) + "}"
	}
	g := p.Grant
	if p.Kind == Listen {
		g.Port = p.Ports.From
	}
	return g.String()
}

// String lists the patterns of s.
func (s *Set) String() string {
	var all []string
	for _, p := range s.Patterns() {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}
