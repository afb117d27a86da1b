// Package device limits the devices of a v2 cgroup by a BPF program, which it assembles
// and loads by itself: the program has a few dozen instructions, and the libraries that
// make such programs are larger than a whole agent for a virtual machine's guest.
//
// It must not know how cgroups are laid out: it gets a directory. Start at Attach.
package device

import (
	"strconv"
)

// Any is a major or minor number that matches all.
const Any = -1

// Access is a set of kinds of access.
type Access uint8

// The kinds of access, with the kernel's values.
const (
	Mknod Access = 1 << iota
	Read
	Write

	Full = Mknod | Read | Write
)

// The kinds of devices.
const (
	All   = 'a' // each device, whatever the rule's numbers and access
	Char  = 'c'
	Block = 'b'
)

// Rule allows or denies devices.
type Rule struct {
	Allow        bool
	Kind         byte // All, Char or Block
	Major, Minor int64
	Access       Access
}

// String returns the rule as cgroup v1's files take it.
func (r Rule) String() string {
	out := string(r.Kind) + " " + number(r.Major) + ":" + number(r.Minor) + " "
	for _, a := range []struct {
		kind   Access
		letter string
	}{{Read, "r"}, {Write, "w"}, {Mknod, "m"}} {
		if r.Access&a.kind != 0 {
			out += a.letter
		}
	}
	return out
}

func number(n int64) string {
	if n == Any {
		return "*"
	}
	return strconv.FormatInt(n, 10)
}

// ParseAccess reads a set of the letters r, w and m, each at most once, in that order.
func ParseAccess(s string) (a Access, ok bool) {
	rest := s
	for _, k := range []struct {
		kind   Access
		letter byte
	}{{Read, 'r'}, {Write, 'w'}, {Mknod, 'm'}} {
		if rest != "" && rest[0] == k.letter {
			a, rest = a|k.kind, rest[1:]
		}
	}
	return a, rest == ""
}
