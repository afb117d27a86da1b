package plan

import (
	"errors"
	"slices"
	"strconv"
	"unsafe"
)

// IDRange maps Size IDs from Inside a user namespace to Outside, in the keeper's.
type IDRange struct{ Inside, Outside, Size uint32 }

// IDMap is a whole mapping of users or of groups.
type IDMap []IDRange

// User is a user namespace that the keeper makes before the child runs. Slot gets its
// descriptor.
type User struct {
	Slot       Slot
	UIDs, GIDs IDMap
}

// Limits for the user namespaces of one plan. The kernel accepts 340 ranges, and at most
// a page of text.
const (
	MaxUsers  = 16
	MaxRanges = 100
)

// ErrMapping means that a mapping is invalid. The kernel would refuse most invalid ones
// too, but only after the plan had begun.
var ErrMapping = errors.New("plan: invalid ID mapping: it is empty, overlaps, or exceeds 32 bits")

// Check says whether m can be a user namespace's mapping.
func (m IDMap) Check() error {
	if len(m) == 0 || len(m) > MaxRanges {
		return ErrMapping
	}
	const end = 1<<32 - 1 // the last ID means no ID
	meet := func(a, b, size, size2 uint32) bool {
		return uint64(a) < uint64(b)+uint64(size2) && uint64(b) < uint64(a)+uint64(size)
	}
	for i, r := range m {
		if r.Size == 0 || uint64(r.Inside)+uint64(r.Size) > end || uint64(r.Outside)+uint64(r.Size) > end {
			return ErrMapping
		}
		for _, o := range m[:i] {
			if meet(r.Inside, o.Inside, r.Size, o.Size) || meet(r.Outside, o.Outside, r.Size, o.Size) {
				return ErrMapping
			}
		}
	}
	return nil
}

// Maps reports whether id, inside, is mapped.
func (m IDMap) Maps(id uint32) bool {
	return slices.ContainsFunc(m, func(r IDRange) bool { return id >= r.Inside && id-r.Inside < r.Size })
}

// String returns the mapping in the format of uid_map and gid_map.
func (m IDMap) String() string {
	out := ""
	for i, r := range m {
		if i > 0 {
			out += "\n"
		}
		out += strconv.FormatUint(uint64(r.Inside), 10) + " " + strconv.FormatUint(uint64(r.Outside), 10) + " " + strconv.FormatUint(uint64(r.Size), 10)
	}
	return out
}

// User makes the keeper create a user namespace, and returns the slot for its
// descriptor. The same mappings give the same slot.
func (b *Builder) User(uids, gids IDMap) Slot {
	for _, u := range b.users {
		if slices.Equal(u.UIDs, uids) && slices.Equal(u.GIDs, gids) {
			return u.Slot
		}
	}
	u := User{b.NewSlot(), uids, gids}
	b.users = append(b.users, u)
	return u.Slot
}

// Users lists the user namespaces of all calls of User.
func (b *Builder) Users() []User { return b.users }

// encodeUsers writes, for each user namespace, its slot, the lengths of both mappings
// and their ranges, all as words.
func (b *Builder) encodeUsers() Ptr {
	if len(b.users) == 0 {
		return 0
	}
	var w []uint64
	for _, u := range b.users {
		w = append(w, uint64(u.Slot), uint64(len(u.UIDs)), uint64(len(u.GIDs)))
		for _, r := range slices.Concat(u.UIDs, u.GIDs) {
			w = append(w, uint64(r.Inside), uint64(r.Outside), uint64(r.Size))
		}
	}
	return b.Words(w...)
}

// usersOf reads and checks the user namespaces of a plan.
func usersOf(blob []byte, h *Header) ([]User, error) {
	if h.NumUsers == 0 {
		return nil, nil
	}
	if h.NumUsers > MaxUsers || h.Users%8 != 0 || h.Users < headerSize {
		return nil, ErrBounds
	}
	at, bad := h.Users, false
	word := func() uint64 {
		if bad = bad || at > h.Ops-8; bad {
			return 0
		}
		at += 8
		return *(*uint64)(unsafe.Pointer(&blob[at-8]))
	}
	small := func() uint32 {
		w := word()
		bad = bad || w > 1<<32-1
		return uint32(w)
	}
	users := make([]User, h.NumUsers)
	for i := range users {
		slot, uids, gids := word(), word(), word()
		if bad || slot < SlotFree || slot >= ownSlots || uids > MaxRanges || gids > MaxRanges {
			return nil, ErrBounds
		}
		u := &users[i]
		u.Slot, u.UIDs, u.GIDs = Slot(slot), make(IDMap, uids), make(IDMap, gids)
		for _, m := range []IDMap{u.UIDs, u.GIDs} {
			for j := range m {
				m[j] = IDRange{small(), small(), small()}
			}
			if bad {
				return nil, ErrBounds
			}
			if err := m.Check(); err != nil {
				return nil, err
			}
		}
	}
	return users, nil
}

// Users returns the user namespaces that the plan needs.
func (p Placed) Users() []User { return p.users }

// CloneArgsSize is the size of struct clone_args up to its cgroup field.
const CloneArgsSize = 88

// Offsets of struct clone_args' fields.
const (
	cloneCgroup = 80
)

// AddFork appends a Fork with the clone flags. With a cgroup slot, which holds a
// directory's descriptor, the second child starts in that cgroup.
func (b *Builder) AddFork(name string, flags, cgroupFlag uint64, cgroup Slot) {
	var w [CloneArgsSize / 8]uint64
	w[0] = flags
	if cgroup != 0 {
		w[0] |= cgroupFlag
	}
	p := b.Words(w[:]...)
	if cgroup != 0 {
		b.AddStore("cgroup to be born in", cgroup, p+cloneCgroup)
	}
	o := Op{Kind: Fork, Out: -1, Ptrs: 1, Name: uint32(b.String(name))}
	o.A[0] = uint64(p)
	b.ops = append(b.ops, o)
}

// Forks reports whether the plan has a Fork.
func (p Placed) Forks() bool {
	return slices.ContainsFunc(p.Ops, func(o Op) bool { return o.Kind == Fork })
}
