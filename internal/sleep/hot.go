package sleep

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sleep/pages"
)

// hot has the pages of a container that the page server restores first. An agent does not know those of the agent before it.
type hot struct {
	places  []pages.Touch // where its threads were when it fell asleep
	touched []pages.Touch // in its last wakes, the oldest first
	wakes   int
}

// forgotten is the number of wakes after which a page is forgotten. If its program still uses it, the next fault brings it back.
const forgotten = 16

// fellAsleep notes where the threads of a container are.
func (s *Sleeper) fellAsleep(id core.ID, places []pages.Touch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hot[id] == nil {
		s.hot[id] = &hot{}
	}
	s.hot[id].places = places
}

// touched adds the pages of one more wake, and returns the list.
func (s *Sleeper) touched(id core.ID, now []pages.Touch) *hot {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.hot[id]
	if before == nil {
		before = &hot{}
	}
	next := &hot{wakes: before.wakes + 1}
	seen := map[pages.Touch]bool{}
	for i, t := range slices.Concat(before.touched, now) {
		if !seen[t] && (i >= len(before.touched) || (i+next.wakes)%forgotten != 0) {
			seen[t] = true
			next.touched = append(next.touched, t)
		}
	}
	next.touched = next.touched[max(0, len(next.touched)-pages.MaxTouched):]
	return next
}

// first returns an open file with the pages that are restored first. No other process can find it by a name.
func (s *Sleeper) first(id core.ID) (*os.File, error) {
	s.mu.Lock()
	var all []pages.Touch
	if h := s.hot[id]; h != nil {
		all = slices.Concat(h.places, h.touched)
	}
	s.mu.Unlock()
	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.state(id), "first")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(b)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("pass on the pages that are restored first: %w", err)
	}
	return f, nil
}
