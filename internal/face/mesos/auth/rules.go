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

// Kinds of entities.
const (
	entitySome = "SOME"
	entityAny  = "ANY" //nolint:revive // any is Go's
	entityNone = "NONE"
)

// entity says which principals or objects a rule is about: those with these
// values, all, or that none may.
type entity struct {
	Type   string   `json:"type"`
	Values []string `json:"values"`

	uids []uint32 // what Values say, where they are users
}

// matches reports whether a rule with this entity is about value; "" is one that is
// not said.
func (e entity) matches(value string) bool {
	return e.Type != entitySome || value != "" && slices.Contains(e.Values, value)
}

// includes reports whether a rule with this entity is about a user.
func (e entity) includes(uid uint32) bool {
	return e.Type != entitySome || slices.Contains(e.uids, uid)
}

// rule is one line of an action: of the first that matches, what it says holds.
type rule struct{ principals, objects entity }

// allows is for a rule that matches.
func (r rule) allows() bool { return r.principals.Type != entityNone && r.objects.Type != entityNone }

// Rules say who may do what. A nil one allows all.
type Rules struct {
	permissive bool
	rules      map[action][]rule
}

// Users finds a user of this node by name.
type LookupUser func(name string) (uid uint32, ok bool)

// Parse reads rules in JSON. A rule that nothing here would ask for is refused, as
// somebody relies on it, and so is one about a user that the node does not know. A
// user is meant by its uid, which is looked up now: what an image calls a user says
// nothing. InvalidArgument.
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

// strictly reads one JSON value and nothing else.
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
				return nil, fmt.Errorf("there is no type %q", e.Type)
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

// uids are those of users that are given by name or by number. Uid 0 is root's,
// whatever the node calls it.
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

// target is what an action is about: a container, nil for none, and the user that
// a process is to run as.
type object struct {
	container *mesosv1.ContainerID
	user      user
}

// user is who a process is to run as.
type user struct {
	asked string  // as the call has it
	uid   *uint32 // nil: not known yet
}

// grouped reports whether the call chooses a group too. A rule that allows users
// by name says nothing of groups, and so does not allow that.
func (u user) grouped() bool { return strings.Contains(u.asked, ":") }

// allowed holds an action against the rules. As long as the user is not known, what
// some user may is allowed.
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
