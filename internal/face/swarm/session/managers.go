package session

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Managers are where the node may go, and how well it fared there.
type Managers struct {
	mu      sync.Mutex // guards weights
	weights map[Peer]float64
}

// Peer is a manager and where it answers.
type Peer struct {
	ID   string `json:"id,omitempty"` // "" before anybody has told it
	Addr string `json:"addr"`
}

// The changes of a weight after an answer or a failure, and its bounds.
const (
	good      = 10
	bad       = -10
	maxWeight = 256
	least     = 0.001 // that of a manager that has only failed: it is still asked at times
)

// NewManagers begins with the known peers.
func NewManagers(known []Peer) *Managers {
	m := &Managers{weights: map[Peer]float64{}}
	for _, p := range known {
		m.weights[p] = good
	}
	return m
}

// All are the managers, sorted.
func (m *Managers) All() []Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sorted(m.weights)
}

func sorted(weights map[Peer]float64) []Peer {
	return slices.SortedFunc(maps.Keys(weights), func(a, b Peer) int { return strings.Compare(a.Addr+" "+a.ID, b.Addr+" "+b.ID) })
}

// Replace takes the managers that one of them has named, and reports whether they are
// others than before. One that names nobody would leave the node alone for ever, so that
// is not believed.
func (m *Managers) Replace(list []*swarmv1.WeightedPeer) (changed bool) {
	next := map[Peer]float64{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range list {
		p := Peer{ID: w.GetPeer().GetNodeId(), Addr: w.GetPeer().GetAddr()}
		if p.Addr == "" {
			continue
		}
		weight, known := m.weights[p]
		if !known {
			weight, changed = float64(w.GetWeight()), true
		}
		next[p] = weight
	}
	if len(next) == 0 {
		return false
	}
	changed = changed || len(next) != len(m.weights)
	m.weights = next
	return changed
}

// Observe notes how well the node fared with a manager.
func (m *Managers) Observe(p Peer, worth float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w, ok := m.weights[p]; ok {
		m.weights[p] = min(max((w+worth)/2, -maxWeight), maxWeight)
	}
}

// Pick chooses one at random, the better ones more often; false when there is none.
func (m *Managers) Pick() (Peer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := sorted(m.weights)
	sum := 0.0
	for _, p := range all {
		sum += max(m.weights[p], 0) + least
	}
	at := rand.Float64() * sum //nolint:gosec // it spreads load
	for _, p := range all {
		if at -= max(m.weights[p], 0) + least; at <= 0 {
			return p, true
		}
	}
	if len(all) == 0 {
		return Peer{}, false
	}
	return all[len(all)-1], true
}
