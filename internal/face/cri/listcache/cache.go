// Package listcache answers list calls from entries that are encoded once for each
// revision of an object.
//
// Kubelet lists everything each second, and nearly everything is as it was a second
// before: encoding all entries again for every client would be most of what a list
// costs. The package does not know what the entries are. Start at Cache and Entry.
package listcache

import "sync"

// Cache keeps a V for each T. The zero value is empty and ready to use, by several
// goroutines.
type Cache[T, V any] struct {
	mu   sync.Mutex // guards kept
	kept map[*T]V
}

// Of returns the result of build for each object that matches, calling build only for
// objects that are new: a changed object has another address. Results for objects that
// are no longer listed are dropped later. Of stops at the first error of build.
func (c *Cache[T, V]) Of(objects []*T, match func(*T) bool, build func(*T) (V, error)) ([]V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trim(objects)
	var out []V
	for _, o := range objects {
		if !match(o) {
			continue
		}
		v, ok := c.kept[o]
		if !ok {
			var err error
			if v, err = build(o); err != nil {
				return nil, err
			}
			c.kept[o] = v
		}
		out = append(out, v)
	}
	return out, nil
}

// slack is how many results of objects that are gone may be kept, beside one for each
// object that is there.
const slack = 64

// trim drops the results of objects that are not listed, once there are many.
// Preconditions: mu is held.
func (c *Cache[T, V]) trim(objects []*T) {
	if c.kept != nil && len(c.kept) <= 2*len(objects)+slack {
		return
	}
	old := c.kept
	c.kept = make(map[*T]V, len(objects))
	for _, o := range objects {
		if v, ok := old[o]; ok {
			c.kept[o] = v
		}
	}
}
