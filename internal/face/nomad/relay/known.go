package relay

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Nomad asks for schema and capabilities once for each new task, one task after the other: with
// fifty tasks that is most of the time until the last of them arrives. An agent always gives the
// same answers, so one answer of each is enough.

// known returns the stored answer of the connected agent, and the agent's number.
func (p *proxy) known(call string) (f frame, agent int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, ok = p.answers[call]
	return f, p.agents, ok && p.conn != nil && p.conn.GetState() == connectivity.Ready
}

// remember keeps an answer, unless it may be that of an agent before this one.
func (p *proxy) remember(call string, agent int, f frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if agent != p.agents {
		return
	}
	if p.answers == nil {
		p.answers = map[string]frame{}
	}
	p.answers[call] = f
}

// forget says that the next answers may be other ones: a new connection may be to
// another agent.
func (p *proxy) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = nil
	p.agents++
}

// listener records the sent message.
type listener struct {
	grpc.ServerStream
	last frame
}

// SendMsg implements grpc.ServerStream.
func (l *listener) SendMsg(m any) error {
	if f, ok := m.(*frame); ok {
		l.last = *f
	}
	return l.ServerStream.SendMsg(m)
}
