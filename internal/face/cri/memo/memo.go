// Package memo keeps what was made of stored objects until they are replaced.
//
// Kubelet lists all that there is every second, and nearly all of it is what it
// was a second before. It knows nothing of what it keeps. Start at Memo.
package memo

import "sync"

// Memo keeps a V of each T. The zero value is empty and ready; any goroutine may
// use it.
type Memo[T, V any] struct {
	mu   sync.Mutex // guards kept
	kept map[*T]V
}

// Of returns what build makes of each of the objects that match, or has made of it
// before: an object that has changed is another one. What is kept of others than
// objects goes, some time. It ends at the first error of build.
func (m *Memo[T, V]) Of(objects []*T, match func(*T) bool, build func(*T) (V, error)) ([]V, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trim(objects)
	var out []V
	for _, o := range objects {
		if !match(o) {
			continue
		}
		v, ok := m.kept[o]
		if !ok {
			var err error
			if v, err = build(o); err != nil {
				return nil, err
			}
			m.kept[o] = v
		}
		out = append(out, v)
	}
	return out, nil
}

// slack is how many of those that have gone may stay, beside one for each that is
// there.
const slack = 64

// trim drops what is kept of others than objects, once there is much of it.
// Preconditions: mu is held.
func (m *Memo[T, V]) trim(objects []*T) {
	if m.kept != nil && len(m.kept) <= 2*len(objects)+slack {
		return
	}
	old := m.kept
	m.kept = make(map[*T]V, len(objects))
	for _, o := range objects {
		if v, ok := old[o]; ok {
			m.kept[o] = v
		}
	}
}
