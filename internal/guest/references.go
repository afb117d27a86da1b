package guest

import (
	"maps"
	"slices"
	"sync"
)

// references are the targets of storages that are mounted. The zero value has none.
type references struct {
	mu   sync.Mutex          // guards list, adds
	list map[string]*mounted // by target
	adds int                 // so far
}

// mounted is a target that is in use.
type mounted struct {
	refs  int
	undo  func() error
	place int // in the order of the mounts
}

// add records the first reference of a mount at a target.
func (r *references) add(target string, undo func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		r.list = map[string]*mounted{}
	}
	r.adds++
	r.list[target] = &mounted{refs: 1, undo: undo, place: r.adds}
}

// refer adds to the references of the mount at a target, and returns how many there are now; 0 if
// there is no mount.
func (r *references) refer(target string, more int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.list[target]
	if u == nil {
		return 0
	}
	u.refs += more
	return u.refs
}

// drop takes a reference away. After the last one undo unmounts; it is nil while there are
// others, and when there was none.
func (r *references) drop(target string) (undo func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.list[target]
	if u == nil {
		return nil
	}
	if u.refs--; u.refs > 0 {
		return nil
	}
	delete(r.list, target)
	return u.undo
}

// dropAll removes all references, and returns the functions that unmount everything, the last mount
// first.
func (r *references) dropAll() (undo []func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	placed := map[int]func() error{} // numbers are sorted by code that the agent has anyway
	for _, u := range r.list {
		placed[u.place] = u.undo
	}
	for _, place := range slices.Backward(slices.Sorted(maps.Keys(placed))) {
		undo = append(undo, placed[place])
	}
	r.list = nil
	return undo
}
