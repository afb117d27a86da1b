// Package acl is about who may make which call, by rules in the form of Mesos'
// ACLs.
//
// It is pure. Start at Parse and Rules.Allow.
package acl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
)

// Kinds of entities.
const (
	some = "SOME"
	any_ = "ANY" //nolint:revive // any is Go's
	none = "NONE"
)

// entity says which principals or objects a rule is about: those with these
// values, all, or that none may.
type entity struct {
	Type   string   `json:"type"`
	Values []string `json:"values"`
}

// matches reports whether a rule with this entity is about value; "" is one that is
// not said.
func (e entity) matches(value string) bool {
	return e.Type != some || value != "" && slices.Contains(e.Values, value)
}

// rule is one line of an action: of the first that matches, what it says holds.
type rule struct{ principals, objects entity }

// allows is for a rule that matches.
func (r rule) allows() bool { return r.principals.Type != none && r.objects.Type != none }

// Rules say who may do what. A nil one allows all.
type Rules struct {
	permissive bool
	rules      map[action][]rule
}

// Parse reads rules in JSON. A rule that nothing here would ask for is refused, as
// somebody relies on it. InvalidArgument.
func Parse(raw []byte) (*Rules, error) {
	var file map[string]json.RawMessage
	if err := strictly(raw, &file); err != nil {
		return nil, invalid("%v", err)
	}
	r := &Rules{permissive: true, rules: map[action][]rule{}}
	for key, value := range file {
		if key == "permissive" {
			if err := strictly(value, &r.permissive); err != nil {
				return nil, invalid("permissive: %v", err)
			}
			continue
		}
		list, err := parseRules(action(key), value)
		if err != nil {
			return nil, invalid("%s: %v", key, err)
		}
		r.rules[action(key)] = list
	}
	return r, nil
}

// strictly reads one JSON value and nothing else.
func strictly(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows after the value")
	}
	return nil
}

func parseRules(a action, raw []byte) ([]rule, error) {
	object, ok := objects()[a]
	if !ok {
		return nil, errors.New("this agent asks for no such rule")
	}
	var lines []map[string]entity
	if err := strictly(raw, &lines); err != nil {
		return nil, err
	}
	var list []rule
	for _, l := range lines {
		p, hasP := l["principals"]
		o, hasO := l[object]
		if !hasP || !hasO || len(l) != 2 {
			return nil, fmt.Errorf("a rule has principals and %s", object)
		}
		for _, e := range []*entity{&p, &o} {
			if e.Type == "" {
				e.Type = some
			}
			if e.Type != some && e.Type != any_ && e.Type != none {
				return nil, fmt.Errorf("there is no type %q", e.Type)
			}
		}
		if o.Type == some && !a.hasObject() {
			return nil, fmt.Errorf("%s may be ANY or NONE only", object)
		}
		list = append(list, rule{p, o})
	}
	return list, nil
}

// target is what an action is about: a user, "" for one that is not said, and a
// container, nil for none.
type target struct {
	user      string
	container *mesosv1.ContainerID
}

// allowed holds an action against the rules.
func (r *Rules) allowed(a action, who Subject, t target) bool {
	if who.Name == "" {
		return who.claims(a, t.container)
	}
	for _, l := range r.rules[a] {
		if l.principals.matches(who.Name) && l.objects.matches(t.user) {
			return l.allows()
		}
	}
	return r.permissive
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
