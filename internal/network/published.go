package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/ports"
)

// Published is a port of the host that leads to several backends, on this node and on others, and
// is no sandbox's.
type Published struct {
	Proto string // tcp, udp or sctp
	Port  uint16
	// Backends have addresses to which this host has a route.
	Backends []nft.Backend
}

// Taken is a published port that somebody else has.
type Taken struct {
	Proto string
	Port  uint16
	Err   error // who has it
}

// published are the ports that are led by Publish.
type published struct {
	claims   *ports.Claims
	balancer *nft.Balancer
	log      *slog.Logger

	mu    sync.Mutex // guards led, taken; serializes Publish
	led   map[ports.Claim]bool
	taken []Taken
}

// Publish leads these ports of the host, and no others any more, to their backends, at each of the
// host's addresses; loopback's too, for backends on our bridges. It returns those that are not led
// because a process of the host, or a sandbox, has them; the next call tries again. An error that
// is InvalidArgument changes nothing.
func (n *Network) Publish(_ context.Context, list []Published) ([]Taken, error) {
	taken, err := n.published.set(list)
	if err != nil {
		return taken, fmt.Errorf("publish ports: %w", err)
	}
	return taken, nil
}

func (p *published) set(list []Published) ([]Taken, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var services []nft.Service
	var taken []Taken
	next := map[ports.Claim]bool{}
	for _, port := range list {
		proto, err := ports.Number(port.Proto)
		if err != nil {
			return p.taken, fmt.Errorf("port %d: %w", port.Port, err)
		}
		s := nft.Service{Proto: proto, Port: port.Port, Backends: port.Backends}
		if err := nft.Check(append(slices.Clone(services), s)); err != nil {
			return p.taken, err
		}
		services = append(services, s)
	}
	led := services[:0:0]
	for i, port := range list {
		claim := ports.Claim{Proto: port.Proto, Port: port.Port}
		if claim.Proto == "" {
			claim.Proto = "tcp"
		}
		if !p.led[claim] && !next[claim] {
			if err := p.claim(claim); err != nil {
				taken = append(taken, Taken{claim.Proto, claim.Port, err})
				continue
			}
		}
		next[claim] = true
		led = append(led, services[i])
	}
	for claim := range p.led {
		if !next[claim] {
			p.claims.Give(ports.Published, claim)
		}
	}
	p.led = next
	p.say(taken)
	return taken, p.balancer.Set(nil, led)
}

// claim claims a port on which no process of the host listens.
func (p *published) claim(c ports.Claim) error {
	if err := p.claims.Take(ports.Published, []ports.Claim{c}); err != nil {
		return err
	}
	if err := ports.Probe(c); err != nil {
		p.claims.Give(ports.Published, c)
		return err
	}
	return nil
}

// say logs which ports have come to be taken, or are not any more. Preconditions: mu is held.
func (p *published) say(taken []Taken) {
	same := func(t Taken) func(Taken) bool {
		return func(o Taken) bool { return t.Proto == o.Proto && t.Port == o.Port }
	}
	for _, t := range taken {
		if !slices.ContainsFunc(p.taken, same(t)) {
			p.log.Warn("a published port is taken on this node; it is served by the other nodes", "proto", t.Proto, "port", int(t.Port), "error", t.Err.Error())
		}
	}
	for _, t := range p.taken {
		if !slices.ContainsFunc(taken, same(t)) && p.led[ports.Claim{Proto: t.Proto, Port: t.Port}] {
			p.log.Info("a published port that was taken is served now", "proto", t.Proto, "port", int(t.Port))
		}
	}
	p.taken = taken
}

// trouble says which published ports are taken, "" for none.
func (p *published) trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, t := range p.taken {
		text := t.Err.Error()
		for _, class := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrInvalidArgument} {
			if errors.Is(t.Err, class) {
				text = strings.TrimSuffix(text, ": "+class.Error())
			}
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// release removes the rules.
func (p *published) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims.Drop(ports.Published)
	p.led, p.taken = nil, nil
	return p.balancer.Withdraw(nil)
}
