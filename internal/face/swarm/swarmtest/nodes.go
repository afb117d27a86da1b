package swarmtest

import swarmv1 "github.com/longshore/longshore/api/swarm/v1"

// opened is a session of a node. One without an id ends those before it, without a node those
// of every node.
type opened struct{ node, id string }

// Sessions counts the new sessions.
func (m *Manager) Sessions() int { return m.SessionsOf("") }

// SessionsOf counts the new sessions of a node; "" is every node.
func (m *Manager) SessionsOf(node string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		if s.id != "" && (node == "" || s.node == node) {
			n++
		}
	}
	return n
}

// GiveUp forgets the session of a node, as a manager does after three missing heartbeats: the node
// is Down, and has to register again.
func (m *Manager) GiveUp(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions = append(m.sessions, opened{node: node})
	m.wake()
}

// current is a node's session that is open, "" for none. Preconditions: mu is held.
func (m *Manager) current(node string) string {
	for i := len(m.sessions) - 1; i >= 0; i-- {
		if s := m.sessions[i]; s.node == node || s.node == "" {
			return s.id
		}
	}
	return ""
}

// given reports whether a task is a node's, as far as the manager knows it.
func given(t *swarmv1.Task, node string) bool { return t.GetNodeId() == "" || t.GetNodeId() == node }
