package swarmtest

import (
	"net"

	"google.golang.org/grpc"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// Power controls a manager's server.
type Power struct {
	m      *Manager
	server *grpc.Server  // that of now, or of before Kill
	served chan struct{} // closed when it serves no more
}

func (p *Power) serve(l net.Listener) {
	m := p.m
	s := grpc.NewServer(grpc.Creds(server{m.Authority.serverConfig(m.certificate)}), grpc.InitialWindowSize(64<<10)) // small buffers for unread data
	swarmv1.RegisterCAServer(s, ca{m: m})
	swarmv1.RegisterNodeCAServer(s, nodeCA{m: m})
	swarmv1.RegisterDispatcherServer(s, dispatcher{m: m})
	swarmv1.RegisterLogBrokerServer(s, logBroker{m: m})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	p.server, p.served = s, served
}

func (p *Power) stop() {
	p.server.Stop()
	<-p.served
}

// Kill breaks all of the manager's connections, and refuses new ones until Restart. It forgets the
// sessions, which are in memory only, but not assignments and reported statuses.
func (p *Power) Kill() {
	p.stop()
	p.m.Drop(true)
}

// Restart has a manager that was killed serve again, where it did before.
func (p *Power) Restart() {
	p.m.tb.Helper()
	// A node that dials an address of its own machine where nobody listens may, by chance, hold
	// that address itself for a moment.
	roottest.Eventually(p.m.tb, "the manager listens again", func() bool {
		l, err := new(net.ListenConfig).Listen(p.m.tb.Context(), "tcp", p.m.Addr)
		if err == nil {
			p.serve(l)
		}
		return err == nil
	})
}
