package names

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/weaken"
)

// Arg is the first argument of a process that is the name server.
const Arg = "names-server"

// process is the name server.
type process struct {
	ended chan struct{}
	once  sync.Once
	pool  *pool

	mu      sync.RWMutex // guards zones, changed, boxes, agents
	zones   map[string]Zone
	changed chan struct{} // closed and replaced when a zone is set
	boxes   map[core.ID]*box
	agents  int // connections
}

// Main is the process. Its descriptor 3 is the socket at which agents connect. It ends when it has
// nothing to answer and no agent is connected.
func Main() int {
	if weaken.Mark("names-fails", 0) != 0 {
		fmt.Fprintln(os.Stderr, "name server: this build does not start")
		return 1
	}
	// Its input is written by workloads and by servers on the network. It adds addresses to the rules of sandboxes with an egress list,
	// by sockets of the agent's, and for that the kernel wants a capability: it has no other use of it.
	if _, err := confine.Apply(confine.Leave{Families: []uint32{unix.AF_INET, unix.AF_INET6}, Caps: []uint{unix.CAP_NET_ADMIN}, PlainSockets: true}); err != nil {
		fmt.Fprintln(os.Stderr, "name server:", err)
		return 1
	}
	f := os.NewFile(3, "agents")
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "name server:", err)
		return 1
	}
	p := newProcess()
	go p.accept(l)
	<-p.ended
	return 0
}

func newProcess() *process {
	return &process{ended: make(chan struct{}), pool: newPool(), zones: map[string]Zone{}, changed: make(chan struct{}), boxes: map[core.ID]*box{}}
}

func (p *process) end() { p.once.Do(func() { close(p.ended) }) }

func (p *process) accept(l net.Listener) {
	for {
		conn, err := shortage.Accept(l.Accept)
		if err != nil {
			fmt.Fprintln(os.Stderr, "name server:", err)
			p.end()
			return
		}
		c, ok := conn.(*net.UnixConn)
		if !ok {
			continue
		}
		p.mu.Lock()
		p.agents++
		p.mu.Unlock()
		go p.agent(c)
	}
}

// agent serves one connection.
func (p *process) agent(c *net.UnixConn) {
	defer func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.agents--; p.agents == 0 && len(p.boxes) == 0 {
			p.end()
		}
	}()
	for {
		var req request
		files, err := receive(c, &req)
		if err != nil && !errors.Is(err, errShort) {
			return
		}
		var resp response
		var sockets []*os.File
		if err == nil {
			resp, err = p.do(req, files)
		}
		if req.Op != opLimit && req.Op != opVerify || err != nil {
			closeAll(files)
		}
		if err == nil && (req.Op == opSockets || req.Op == opReports) {
			sockets, err = p.sockets(req.Sandbox, req.Op)
		}
		if err == nil {
			err = send(c, resp, sockets)
			closeAll(sockets)
			if err != nil && !errors.Is(err, errShort) {
				return
			}
		}
		if err != nil {
			resp.Error, resp.Short = err.Error(), errors.Is(err, errShort) || shortage.Is(err)
			if send(c, resp, nil) != nil {
				return
			}
		}
		if req.Op == opEnd {
			p.end()
			return
		}
	}
}

func (p *process) do(req request, files []*os.File) (resp response, err error) {
	switch req.Op {
	case opHello:
		p.mu.Lock()
		defer p.mu.Unlock()
		resp.Sandboxes, resp.Pid = slices.Sorted(maps.Keys(p.boxes)), os.Getpid()
		for id, b := range p.boxes {
			if n := b.unanswered(); n > 0 {
				if resp.Unanswered == nil {
					resp.Unanswered = map[core.ID]uint64{}
				}
				resp.Unanswered[id] = n
			}
			if n := b.refusals(); n > 0 {
				if resp.Refused == nil {
					resp.Refused = map[core.ID]uint64{}
				}
				resp.Refused[id] = n
			}
		}
	case opZone:
		p.mu.Lock()
		defer p.mu.Unlock()
		if delete(p.zones, req.Network); req.Zone != nil {
			z := *req.Zone
			z.fill()
			p.zones[req.Network] = z
		}
		close(p.changed)
		p.changed = make(chan struct{})
	case opPatch:
		p.mu.Lock()
		defer p.mu.Unlock()
		z, ok := p.zones[req.Network]
		if !ok || req.Patch == nil {
			return resp, fmt.Errorf("nothing is known of network %q", req.Network)
		}
		z.apply(req.Patch)
	case opAdd:
		err = p.add(req, files)
	case opSet:
		p.mu.Lock()
		b, ok := p.boxes[req.Sandbox]
		p.mu.Unlock()
		if !ok {
			return resp, fmt.Errorf("no sandbox %s", req.Sandbox)
		}
		b.set(asks{req.Networks, req.Upstream})
		resp.Needs, err = b.change(req.Egress)
	case opLimit, opVerify:
		p.mu.Lock()
		b, ok := p.boxes[req.Sandbox]
		p.mu.Unlock()
		switch {
		case !ok:
			return resp, fmt.Errorf("no sandbox %s", req.Sandbox)
		case req.Op == opVerify:
			err = b.verify(files)
		default:
			err = b.setLimit(req.Egress, files)
		}
	case opDrop:
		p.drop(req.Sandbox)
	case opRetire:
		p.retire()
	case opEnd, opSockets, opReports:
	default:
		err = fmt.Errorf("unknown operation %q", req.Op)
	}
	return resp, err
}

func (p *process) add(req request, files []*os.File) error {
	if len(files) != 2 {
		return errors.New("two sockets are needed")
	}
	udp, err := net.FilePacketConn(files[0])
	if err != nil {
		return err
	}
	tcp, err := net.FileListener(files[1])
	if err != nil {
		return errors.Join(err, udp.Close())
	}
	p.drop(req.Sandbox)
	b := newBox(udp, tcp, asks{req.Networks, req.Upstream}, p.answer, p.pool)
	if b.limit, err = filterOf(req.Egress, nil, nil, req.Again); err != nil {
		b.close()
		return err
	}
	b.budget.exceeded = func() {
		fmt.Fprintf(os.Stderr, "name server: sandbox %q asks more than %d questions per second; the rest is dropped\n", req.Sandbox, questionRate)
	}
	if req.Wait {
		b.wait = p.awaitZones
	}
	p.pool.join()
	b.serve()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boxes[req.Sandbox] = b
	return nil
}

// sockets returns duplicates of a sandbox's sockets, or with opReports of that of its reports.
func (p *process) sockets(id core.ID, op string) ([]*os.File, error) {
	p.mu.Lock()
	b, ok := p.boxes[id]
	p.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("no sandbox %s", id)
	}
	if op == opReports {
		f, err := b.reportsSocket()
		if err != nil {
			return nil, err
		}
		return []*os.File{f}, nil
	}
	udp, ok := b.udp.(*net.UDPConn)
	tcp, ok2 := b.tcp.(*net.TCPListener)
	if !ok || !ok2 {
		return nil, fmt.Errorf("the sockets of sandbox %s are of another kind", id)
	}
	one, err := udp.File()
	if err != nil {
		return nil, err
	}
	two, err := tcp.File()
	if err != nil {
		return nil, errors.Join(err, one.Close())
	}
	return []*os.File{one, two}, nil
}

// retireTime bounds the last answers of a process, which other servers may give, and splicedTime its last connections: a sandbox
// that ends waits for neither.
const (
	retireTime  = maxServers*upstreamTime + time.Second
	splicedTime = time.Minute
)

// retire ends the process after its last answers and verified connections.
func (p *process) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var last, spliced sync.WaitGroup
	for _, b := range p.boxes {
		b.retire()
		last.Go(b.ended.Wait)
		if s := b.splices.Load(); s != nil {
			spliced.Go(s.Retire)
		}
	}
	end := func() {
		spliced.Wait()
		p.end()
	}
	go func() {
		last.Wait()
		end()
	}()
	time.AfterFunc(retireTime, end)
	time.AfterFunc(splicedTime, p.end)
}

func (p *process) drop(id core.ID) {
	p.mu.Lock()
	b, ok := p.boxes[id]
	delete(p.boxes, id)
	p.mu.Unlock()
	if ok {
		b.close()
		p.pool.leave()
	}
}

// zonesTime is how long questions wait for zones after a start. Resolvers ask again after five
// seconds.
const zonesTime = 4 * time.Second

// awaitZones waits for the zones of networks, for a limited time.
func (p *process) awaitZones(ctx context.Context, networks []string) {
	late := time.NewTimer(zonesTime)
	defer late.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		missing := slices.ContainsFunc(networks, func(n string) bool {
			_, ok := p.zones[n]
			return !ok
		})
		p.mu.Unlock()
		if !missing {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// answer answers a question from the zones of networks.
func (p *process) answer(networks []string, question []byte, stream bool) ([]byte, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	list := make([]Zone, 0, len(networks))
	for _, n := range networks {
		if z, ok := p.zones[n]; ok {
			list = append(list, z)
		}
	}
	return Answer(list, question, stream)
}
