package quadlet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/cli/unitfile"
)

// State says how far a key is supported.
type State string

// The states of keys.
const (
	Works   State = "works"
	Differs State = "differs"
	Refused State = "refused"
)

// Key is a key of a Quadlet file.
type Key struct {
	Section, Name string
	State         State
	// Note is the difference or the reason of the refusal, in the words of the documentation.
	Note string

	apply func(b *build, list []unitfile.Entry) error // nil: another key's function, or generate.go, reads it
}

// Keys returns all known keys.
func Keys() []Key { return slices.Concat(containerKeys(), volumeKeys(), networkKeys(), quadletKeys()) }

// build translates one file.
type build struct {
	g       *generator
	s       *source
	args    []string // flags of the command
	service []string // generated lines of [Service]
	deps    []string // units that it requires
	mounts  []string // paths of the node
	notes   []Problem
	errs    []error
}

func (b *build) fail(err error) {
	if err != nil {
		b.errs = append(b.errs, err)
	}
}

// note adds a message about an assignment that has less effect than with Podman.
func (b *build) note(e unitfile.Entry, format string, args ...any) {
	b.notes = append(b.notes, Problem{unitfile.Error{Path: e.Path, Line: e.Line, Text: e.Key + "=: " + fmt.Sprintf(format, args...)}, false})
}

func (b *build) flag(name, value string) { b.args = append(b.args, "--"+name+"="+value) }

// check applies all keys of the file's own section, and refuses unknown ones.
func (b *build) check() {
	known := map[string]Key{}
	for _, k := range Keys() {
		if k.Section == sections[b.s.kind] || k.Section == "Quadlet" {
			known[k.Section+"."+k.Name] = k
		}
	}
	done := map[string]bool{}
	for _, section := range []string{sections[b.s.kind], "Quadlet"} {
		for _, e := range b.s.file.Section(section) {
			k, ok := known[section+"."+e.Key]
			switch {
			case !ok:
				b.fail(e.Errorf("[%s] has no key %s", section, e.Key))
			case done[section+"."+e.Key]:
			default:
				list := b.s.file.All(section, e.Key)
				if k.apply != nil && len(list) > 0 {
					b.fail(k.apply(b, unquoted(list)))
				}
			}
			done[section+"."+e.Key] = true
		}
	}
}

// unquoted removes double quotes around whole values.
func unquoted(list []unitfile.Entry) []unitfile.Entry {
	out := slices.Clone(list)
	for i, e := range out {
		if v := e.Value; len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' && !strings.Contains(v[1:len(v)-1], `"`) {
			out[i].Value = v[1 : len(v)-1]
		}
	}
	return out
}

// last returns the last element.
func last(list []unitfile.Entry) unitfile.Entry { return list[len(list)-1] }

// The functions below make the apply functions of keys.

// each adds a flag for each assignment.
func each(flag string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		for _, e := range list {
			b.flag(flag, e.Value)
		}
		return nil
	}
}

// one adds a flag for the last assignment.
func one(flag string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		b.flag(flag, last(list).Value)
		return nil
	}
}

// wordsOf returns the words of all assignments of the key of list.
func (b *build) wordsOf(list []unitfile.Entry) (all []string, err error) {
	for _, e := range b.s.file.All(sections[b.s.kind], list[0].Key) {
		w, err := unitfile.Split(e.Value)
		if err != nil {
			return nil, e.Errorf("%s: %v", e.Key, err)
		}
		all = append(all, w...)
	}
	return all, nil
}

// words adds a flag for each word of the assignments.
func words(flag string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		all, err := b.wordsOf(list)
		for _, w := range all {
			b.flag(flag, w)
		}
		return err
	}
}

// pairs is words for NAME=value. Of two values of one name the last one counts.
func pairs(flag string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		all, err := b.wordsOf(list)
		later := map[string]int{}
		for i, w := range all {
			name, _, _ := strings.Cut(w, "=")
			if name == "" {
				return last(list).Errorf("%s: %q is not NAME=value", last(list).Key, w)
			}
			later[name] = i
		}
		for i, w := range all {
			if name, _, _ := strings.Cut(w, "="); later[name] == i {
				b.flag(flag, w)
			}
		}
		return err
	}
}

// on adds arguments if the key is true.
func on(args ...string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		is, err := truth(last(list))
		if is {
			b.args = append(b.args, args...)
		}
		return err
	}
}

// truth parses a value that is true or false.
func truth(e unitfile.Entry) (bool, error) {
	f := unitfile.File{Sections: []unitfile.Section{{Name: "x", Entries: []unitfile.Entry{e}}}}
	return f.Bool("x", e.Key, false)
}

// never refuses the key with its note.
func never(b *build, list []unitfile.Entry) error {
	e := last(list)
	for _, k := range Keys() {
		if k.Section == sections[b.s.kind] && k.Name == e.Key {
			return e.Errorf("%s= is refused: %s", e.Key, k.Note)
		}
	}
	return e.Errorf("%s= is refused", e.Key)
}

// unlessFalse refuses the key with its note, but for the value false.
func unlessFalse(b *build, list []unitfile.Entry) error {
	if is, err := truth(last(list)); err != nil || !is {
		return err
	}
	return never(b, list)
}

// ignored reports that the key has no effect.
func ignored(why string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		b.note(last(list), "%s", why)
		return nil
	}
}

// among adds a flag with the last value, and refuses all values but some.
func among(flag string, values ...string) func(*build, []unitfile.Entry) error {
	return func(b *build, list []unitfile.Entry) error {
		e := last(list)
		if !slices.Contains(values, e.Value) {
			return e.Errorf("%s=%s is refused: it is none of %s", e.Key, e.Value, strings.Join(values, ", "))
		}
		b.flag(flag, e.Value)
		return nil
	}
}

// quadletKeys are the keys of [Quadlet].
func quadletKeys() []Key {
	return []Key{{"Quadlet", "DefaultDependencies", Works, "", nil}}
}
