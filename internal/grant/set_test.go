package grant_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/grant"
)

var (
	aName   = rapid.SampledFrom([]string{"/a", "/b", "/c"})
	aLabels = rapid.MapOfN(rapid.SampledFrom([]string{"k", "l"}), rapid.SampledFrom([]string{"1", "2"}), 0, 2)
	aPort   = rapid.Uint16Range(1, 12)
	aKind   = rapid.SampledFrom(grant.Kinds())
	aRight  = rapid.Map(rapid.Uint8Range(0, 7), func(r uint8) grant.Rights { return grant.Rights(r) })
)

var aGrant = rapid.Custom(func(t *rapid.T) grant.Grant {
	g := grant.Grant{Kind: aKind.Draw(t, "kind")}
	switch g.Kind {
	case grant.Mount:
		g.Name, g.Rights, g.AtMost = aName.Draw(t, "name"), aRight.Draw(t, "rights"), rapid.Bool().Draw(t, "at most")
	case grant.Env:
		g.Name = rapid.OneOf(aName, rapid.Just("")).Draw(t, "name")
	case grant.Secret:
		g.Name = aName.Draw(t, "name")
	case grant.Listen:
		g.Protocol, g.Port = rapid.SampledFrom([]string{grant.TCP, grant.UDP}).Draw(t, "protocol"), aPort.Draw(t, "port")
	case grant.Server, grant.Client:
		g.Labels = aLabels.Draw(t, "labels")
	}
	return g
})

var aSet = rapid.Custom(func(t *rapid.T) *grant.Set {
	var patterns []grant.Pattern
	for _, g := range rapid.SliceOfN(aGrant, 0, 8).Draw(t, "patterns") {
		p := grant.Pattern{Grant: g, Ports: grant.Ports{From: g.Port, To: aPort.Draw(t, "to")}}
		p.Port, p.AtMost = 0, false
		if (p.Kind == grant.Mount || p.Kind == grant.Env || p.Kind == grant.Secret) && (p.Name == "" || rapid.IntRange(0, 3).Draw(t, "any") == 0) {
			p.Name = grant.Any
		}
		patterns = append(patterns, p)
	}
	if rapid.IntRange(0, 9).Draw(t, "everything") == 0 {
		return grant.Everything()
	}
	return grant.NewSet(patterns...)
})

// allowed is the part of g that s allows: its rights, if it is a mount, or 1.
func allowed(s *grant.Set, g grant.Grant) grant.Rights {
	given, ok := s.Allow(g)
	switch {
	case !ok:
		return 0
	case g.Kind == grant.Mount:
		return given.Rights
	}
	return 1
}

func equal(t *rapid.T, law string, a, b *grant.Set) {
	t.Helper()
	if a.String() != b.String() {
		t.Fatalf("%s: %v and %v differ", law, a, b)
	}
}

func TestSetsAreALattice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := aSet.Draw(t, "a"), aSet.Draw(t, "b"), aSet.Draw(t, "c")
		equal(t, "meet is idempotent", a.Meet(a), a)
		equal(t, "join is idempotent", a.Join(a), a)
		equal(t, "meet is commutative", a.Meet(b), b.Meet(a))
		equal(t, "join is commutative", a.Join(b), b.Join(a))
		equal(t, "meet is associative", a.Meet(b).Meet(c), a.Meet(b.Meet(c)))
		equal(t, "join is associative", a.Join(b).Join(c), a.Join(b.Join(c)))
		equal(t, "meet absorbs join", a.Meet(a.Join(b)), a)
		equal(t, "join absorbs meet", a.Join(a.Meet(b)), a)
		equal(t, "meet distributes over join", a.Meet(b.Join(c)), a.Meet(b).Join(a.Meet(c)))
		equal(t, "nothing is the least", a.Meet(grant.NewSet()), grant.NewSet())
		equal(t, "everything is the greatest", a.Meet(grant.Everything()), a)
		equal(t, "patterns make the set again", grant.NewSet(a.Patterns()...), a)
	})
}

func TestMeetAllowsWhatBothAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, g := aSet.Draw(t, "a"), aSet.Draw(t, "b"), aGrant.Draw(t, "g")
		if got, want := allowed(a.Meet(b), g), allowed(a, g)&allowed(b, g); got != want {
			t.Fatalf("the meet of %v and %v allows %v of %v, both allow %v", a, b, got, g, want)
		}
		if got, want := allowed(a.Join(b), g), allowed(a, g)|allowed(b, g); got != want {
			t.Fatalf("the join of %v and %v allows %v of %v, one of them allows %v", a, b, got, g, want)
		}
		if g.Kind == grant.Mount {
			if got := allowed(a, g); got&^g.Rights != 0 {
				t.Fatalf("%v gives %v of %v", a, got, g)
			}
		}
	})
}

func TestNarrowingIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := grant.Value{Form: grant.Sequence}
		for _, g := range rapid.SliceOfN(aGrant, 0, 6).Draw(t, "document") {
			root.Items = append(root.Items, leaf(g))
		}
		doc := &grant.Document{Root: root}
		a, b := aSet.Draw(t, "a"), aSet.Draw(t, "b")
		wide, _ := grant.Narrow(doc, a)
		narrow, denied := grant.Narrow(doc, a.Meet(b))
		again, more := grant.Narrow(narrow, a.Meet(b))
		if len(more) != 0 || grant.Of(again).String() != grant.Of(narrow).String() {
			t.Fatalf("a narrowed document is narrowed again: %v", more)
		}
		for i := range root.Items {
			n, w := narrow.Root.Items[i], wide.Root.Items[i]
			switch {
			case n.Form == grant.Null:
			case w.Form == grant.Null:
				t.Fatalf("%v is given by less, and not by more", root.Items[i].Grant)
			case n.Grant.Rights&^w.Grant.Rights != 0:
				t.Fatalf("%v: less gives %v, more gives %v", root.Items[i].Grant, n.Grant, w.Grant)
			}
			if (n.Form == grant.Null || n.Grant.Rights != root.Items[i].Grant.Rights) != told(denied, fmt.Sprintf("[%d]", i)) {
				t.Fatalf("%v became %v, told %v", root.Items[i].Grant, n, denied)
			}
		}
	})
}

func told(denied []grant.Denied, path string) bool {
	for _, d := range denied {
		if d.Path == path {
			return true
		}
	}
	return false
}

func TestTheRequestGetsNoMoreThanTheImageWishes(t *testing.T) {
	rw := func(kind grant.Kind, name string, rights grant.Rights) grant.Value {
		return leaf(grant.Grant{Kind: kind, Name: name, Rights: rights})
	}
	wish := &grant.Document{Root: sequence(leaf(grant.Grant{Kind: grant.Log}), rw(grant.Mount, "/data", grant.Read), leaf(grant.Grant{Kind: grant.Server, Labels: map[string]string{"app": "db"}}))}
	asked := &grant.Document{Root: sequence(
		rw(grant.Mount, "/data", grant.Read|grant.Write), leaf(grant.Grant{Kind: grant.Random}), text("v"),
		leaf(grant.Grant{Kind: grant.Server, Labels: map[string]string{"app": "db", "tier": "1"}}), leaf(grant.Grant{Kind: grant.Server}),
	)}
	for _, c := range []struct {
		name        string
		wish, asked *grant.Document
		allowed     *grant.Set
		want        string
		denied      int
	}{
		{"the wish alone", wish, nil, nil, "!container_log, !mount {path: /data, rights: [read]}, !server {app: db}", 0},
		{"the request alone", nil, asked, nil, "!mount {path: /data, rights: [read, write]}, !server {}, !random", 0},
		{"both", wish, asked, nil, "!mount {path: /data, rights: [read]}, !server {app: db, tier: 1}", 3},
		{"both and an operator", wish, asked, grant.NewSet(grant.Pattern{Grant: grant.Grant{Kind: grant.Mount, Name: grant.Any, Rights: grant.AllRights}}), "!mount {path: /data, rights: [read]}", 4},
		{"an operator who allows nothing", wish, asked, grant.NewSet(), "nothing", 4},
	} {
		got, denied := grant.Decide(c.wish, c.asked, c.allowed)
		if text := grant.Of(got).String(); text != c.want || len(denied) != c.denied {
			t.Errorf("%s: got %s, denied %v; want %s, %d denied", c.name, text, denied, c.want, c.denied)
		}
	}
}
