package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/weaken"
)

// Types of entities in a rule.
const (
	entitySome = "SOME"
	entityAny  = "ANY"
	entityNone = "NONE"
)

// entity says which principals or objects a rule applies to: those with the given
// values, all, or none.
type entity struct {
	Type   string   `json:"type"`
	Values []string `json:"values"`

	uids []uint32 // Values as uids, if they are users
}

// matches reports whether a rule with this entity applies to value. The empty value
// matches no list of values.
func (e entity) matches(value string) bool {
	return e.Type != entitySome || value != "" && slices.Contains(e.Values, value)
}

// includes reports whether a rule with this entity applies to a user.
func (e entity) includes(uid uint32) bool {
	return e.Type != entitySome || slices.Contains(e.uids, uid)
}

// rule is one rule of an action. The first rule that matches decides.
type rule struct{ principals, objects entity }

// allows returns the decision of a matching rule.
func (r rule) allows() bool { return r.principals.Type != entityNone && r.objects.Type != entityNone }

// Rules are authorization rules in the form of Mesos' ACLs. A nil *Rules allows everything.
type Rules struct {
	permissive bool
	rules      map[action][]rule
}

// LookupUser returns the uid of a user of this node.
type LookupUser func(name string) (uid uint32, ok bool)

// ParseRules parses rules in JSON. It returns an error for an action that this agent
// never asks for, because somebody relies on that rule, and for a user that the node
// does not know. User names are resolved to uids now; the names in an image's passwd
// file have no meaning here. InvalidArgument.
func ParseRules(raw []byte, users LookupUser) (*Rules, error) {
	var file map[string]json.RawMessage
	if err := unmarshalStrict(raw, &file); err != nil {
		return nil, invalid.Errorf("%v", err)
	}
	r := &Rules{permissive: true, rules: map[action][]rule{}}
	for key, value := range file {
		if key == "permissive" {
			if err := unmarshalStrict(value, &r.permissive); err != nil {
				return nil, invalid.Errorf("permissive: %v", err)
			}
			continue
		}
		list, err := parseAction(action(key), value, users)
		if err != nil {
			return nil, invalid.Errorf("%s: %v", key, err)
		}
		r.rules[action(key)] = list
	}
	return r, nil
}

// unmarshalStrict decodes exactly one JSON value without unknown fields.
func unmarshalStrict(raw []byte, into any) error {
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

// parseAction parses the rules of one action.
func parseAction(a action, raw []byte, users LookupUser) ([]rule, error) {
	object, ok := objectNames()[a]
	if !ok {
		return nil, errors.New("this agent asks for no such rule")
	}
	var lines []map[string]entity
	if err := unmarshalStrict(raw, &lines); err != nil {
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
				e.Type = entitySome
			}
			if e.Type != entitySome && e.Type != entityAny && e.Type != entityNone {
				return nil, fmt.Errorf("unknown type %q", e.Type)
			}
		}
		if o.Type == entitySome && !a.hasObject() {
			return nil, fmt.Errorf("%s may be ANY or NONE only", object)
		}
		if a.hasObject() {
			var err error
			if o.uids, err = lookupUIDs(o.Values, users); err != nil {
				return nil, err
			}
		}
		list = append(list, rule{p, o})
	}
	return list, nil
}

// lookupUIDs returns the uids of users given by name or number. root always means uid
// 0.
func lookupUIDs(names []string, users LookupUser) (list []uint32, err error) {
	for _, name := range names {
		n, err := strconv.ParseUint(name, 10, 32)
		uid, ok := uint32(n), err == nil && n < math.MaxUint32 && strconv.FormatUint(n, 10) == name
		switch {
		case name == "root":
			uid, ok = 0, true
		case !ok:
			uid, ok = users(name)
		}
		if !ok {
			return nil, fmt.Errorf("user %q is not known on this node: name its uid", name)
		}
		list = append(list, uid)
	}
	return list, nil
}

// object is the object of an action: a container, nil for none, and the user of a new process.
type object struct {
	container *mesosv1.ContainerID
	user      user
}

// user is the user of a new process.
type user struct {
	asked string  // as the call has it
	uid   *uint32 // nil if it is not known yet
}

// grouped reports whether the call asks for a group too. A rule that allows users by
// name says nothing about groups, so it does not allow such a call.
func (u user) grouped() bool { return strings.Contains(u.asked, ":") }

// allowsAction reports whether the rules allow an action. As long as the uid is not
// known, the action is allowed if it is allowed for some user.
func (r *Rules) allowsAction(a action, who Principal, t object) bool {
	if who.Name == "" {
		return who.allowsByClaims(a, t.container)
	}
	for _, l := range r.rules[a] {
		if !l.principals.matches(who.Name) {
			continue
		}
		if !a.hasObject() || l.objects.Type != entitySome {
			return l.allows()
		}
		if weaken.Off(weaken.MesosUsers) {
			if l.objects.matches(t.user.asked) {
				return l.allows()
			}
			continue
		}
		about := t.user.uid == nil && l.allows() || t.user.uid != nil && l.objects.includes(*t.user.uid)
		if about && (!l.allows() || !t.user.grouped()) {
			return l.allows()
		}
	}
	return r.permissive
}
