// Package keylock locks by key: it has a mutex for each key in use. It does not know what the
// locks guard. Start at Map.
package keylock

import (
	"context"
	"sync"
)

// Map is a set of locks. The zero Map is ready to use.
type Map[K comparable] struct {
	mu    sync.Mutex // guards locks
	locks map[K]*lock
}

type lock struct {
	ch   chan struct{} // holds one token while locked
	refs int           // holders and waiters
}

// Lock waits for the lock of key, or for ctx to end, and returns the function that unlocks it.
// Calling that function twice is harmless.
func (m *Map[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	m.mu.Lock()
	if m.locks == nil {
		m.locks = map[K]*lock{}
	}
	l := m.locks[key]
	if l == nil {
		l = &lock{ch: make(chan struct{}, 1)}
		m.locks[key] = l
	}
	l.refs++
	m.mu.Unlock()

	select {
	case l.ch <- struct{}{}:
	case <-ctx.Done():
		m.drop(key, l)
		return nil, context.Cause(ctx)
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			<-l.ch
			m.drop(key, l)
		})
	}, nil
}

// Held reports whether somebody holds the lock of key or waits for it.
func (m *Map[K]) Held(key K) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locks[key] != nil
}

func (m *Map[K]) drop(key K, l *lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.refs--
	if l.refs == 0 {
		delete(m.locks, key)
	}
}
