package overlay

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/nft"
)

// served keeps the rules that forward service addresses to backends, in each sandbox on overlays. A
// sandbox has rules of its own, for the services of all its networks; by changing them it harms
// only itself.
type served struct {
	log *slog.Logger

	mu       sync.Mutex // guards networks, boxes
	networks map[string]*servedNetwork
	boxes    map[core.ID]*servedBox
}

// servedNetwork has the services of one network.
type servedNetwork struct {
	list []nft.Service
	// set says that this process knows them: an earlier one's rules stay until then.
	set bool
}

// servedBox is a sandbox with rules.
type servedBox struct {
	apply sync.Mutex // serializes changes of its rules; guards balancer, made, ill
	// namespace, networks and adopted are guarded by served.mu.
	namespace string
	networks  []string
	adopted   bool // an earlier process may have made rules
	balancer  *nft.Balancer
	made      bool
	ill       bool // the last change failed
}

func newServed(log *slog.Logger) *served {
	return &served{log: log, networks: map[string]*servedNetwork{}, boxes: map[core.ID]*servedBox{}}
}

// networksOf returns the overlays of a status.
func networksOf(st core.NetworkStatus) (list []string) {
	for _, a := range st.Interfaces {
		if name, ok := core.OverlayName(a.Network); ok {
			list = append(list, name)
		}
	}
	return list
}

// box records a sandbox's networks.
func (s *served) box(req core.NetworkRequest, st core.NetworkStatus) *servedBox {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[req.Sandbox]
	if b == nil || b.namespace != req.Namespace {
		h := fnv.New32a()
		_, _ = h.Write([]byte(req.Sandbox))
		b = &servedBox{namespace: req.Namespace, balancer: nft.NewBalancer(nft.BalancerOptions{First: h.Sum32(), Logger: s.log})}
		s.boxes[req.Sandbox] = b
	}
	b.networks = networksOf(st)
	return b
}

// adopt records a sandbox that has rules from an earlier process.
func (s *served) adopt(req core.NetworkRequest) {
	if len(networksOf(req.Last)) == 0 {
		return
	}
	b := s.box(req, req.Last)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.adopted = true
}

// drop forgets a sandbox. Its rules go with its namespace.
func (s *served) drop(id core.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, id)
}

// forget forgets a network.
func (s *served) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.networks, name)
}

// Serve gives a sandbox the services of the networks of st.
func (o *Driver) Serve(req core.NetworkRequest, st core.NetworkStatus) error {
	return o.served.apply(o.served.box(req, st))
}

// set sets the services of a network. With known false it keeps those that are set.
func (s *served) set(name string, list []nft.Service, known bool) {
	s.mu.Lock()
	n := s.networks[name]
	if n == nil {
		n = &servedNetwork{}
		s.networks[name] = n
	}
	if !known && n.set {
		s.mu.Unlock()
		return
	}
	same := n.set && slices.EqualFunc(n.list, list, func(a, b nft.Service) bool { return a.Addr == b.Addr && slices.Equal(a.Backends, b.Backends) })
	n.list, n.set = list, true
	var boxes []*servedBox
	ids := map[*servedBox]core.ID{}
	for id, b := range s.boxes {
		if slices.Contains(b.networks, name) {
			boxes = append(boxes, b)
			ids[b] = id
		}
	}
	s.mu.Unlock()
	// Each takes the kernel milliseconds, mostly waiting.
	var all errgroup.Group
	all.SetLimit(maxChanges)
	for _, b := range boxes {
		all.Go(func() error { s.refresh(ids[b], b, same); return nil })
	}
	_ = all.Wait()
}

// maxChanges is how many sandboxes are changed at a time.
const maxChanges = 8

// refresh applies a change to one sandbox. An error does not affect the others.
func (s *served) refresh(id core.ID, b *servedBox, same bool) {
	b.apply.Lock()
	ill := b.ill
	b.apply.Unlock()
	if same && !ill {
		return
	}
	err := s.apply(b)
	if errors.Is(err, fs.ErrNotExist) {
		return // it ends
	}
	if err != nil && !ill {
		s.log.Warn("cannot change to which backends a sandbox is led", "sandbox", string(id), "error", err.Error())
	}
}

// apply replaces the rules of a sandbox.
func (s *served) apply(b *servedBox) error {
	b.apply.Lock()
	defer b.apply.Unlock()
	want, namespace, ok := s.wanted(b)
	if !ok || len(want) == 0 && !b.made {
		return nil
	}
	ns, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	err = b.balancer.Set(ns, want)
	b.ill, b.made = err != nil, true
	return err
}

// wanted returns the services of a sandbox. ok is false while an earlier process knew more. The
// ranges of networks do not overlap, so that no service of one is in the way of another's.
func (s *served) wanted(b *servedBox) (list []nft.Service, namespace string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range b.networks {
		n := s.networks[name]
		if n == nil || !n.set {
			if b.adopted {
				return nil, "", false
			}
			continue
		}
		list = append(list, n.list...)
	}
	if b.adopted {
		return append(make([]nft.Service, 0, 1), list...), b.namespace, true
	}
	return list, b.namespace, true
}

// servicesOf checks services. It returns the valid ones, and an error, InvalidArgument, for each of
// the others.
func servicesOf(def core.Overlay, services []core.OverlayService) (list []nft.Service, errs []error) {
	invalid := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...))
	}
	addrs := map[netip.Addr]bool{}
	for _, s := range services {
		switch {
		case !usable(def, s.Addr):
			invalid("service %s: its address is none that network %s gives away", s.Addr, def.Name)
		case addrs[s.Addr]:
			invalid("service %s: it is there twice", s.Addr)
		default:
			addrs[s.Addr] = true
			list = append(list, nft.Service{Addr: s.Addr})
		}
	}
	first := map[netip.Addr][]core.OverlayBackend{}
	for _, s := range slices.Backward(services) { // as above, the first one counts
		first[s.Addr] = s.Backends
	}
	for i := range list {
		s := &list[i]
		at := map[netip.Addr]int{}
		for _, b := range first[s.Addr] {
			j, twice := at[b.Addr]
			switch {
			case !usable(def, b.Addr) || b.Addr.Is4() != s.Addr.Is4() || addrs[b.Addr]:
				invalid("service %s: backend %s is no interface of network %s", s.Addr, b.Addr, def.Name)
			case twice: // told of twice while it moves
				s.Backends[j].Draining = s.Backends[j].Draining && b.Draining
			default:
				at[b.Addr] = len(s.Backends)
				s.Backends = append(s.Backends, nft.Backend{Addr: b.Addr, Draining: b.Draining})
			}
		}
		slices.SortFunc(s.Backends, func(a, b nft.Backend) int { return a.Addr.Compare(b.Addr) })
	}
	slices.SortFunc(list, func(a, b nft.Service) int { return a.Addr.Compare(b.Addr) })
	return list, errs
}

// usable reports whether a network may have given an address to somebody.
func usable(def core.Overlay, a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && slices.ContainsFunc(def.Subnets, func(s core.OverlaySubnet) bool {
		return s.Range.Contains(a) && a != s.Gateway && a != s.Range.Addr() && s.Range.Contains(a.Next())
	})
}

// shortened joins errors and shortens a long list, so that a flood of bad records does not flood
// the log.
func shortened(errs ...error) error {
	const most = 5
	var all []error
	for _, err := range errs {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			all = append(all, many.Unwrap()...)
		} else if err != nil {
			all = append(all, err)
		}
	}
	// Errors other than InvalidArgument come first and determine the class, so that the caller retries.
	slices.SortStableFunc(all, func(a, b error) int { return odd(a) - odd(b) })
	if len(all) == 0 || odd(all[0]) == odd(all[len(all)-1]) && len(all) <= most {
		return errors.Join(all...)
	}
	var text []string
	for _, err := range all[1:min(len(all), most)] {
		text = append(text, err.Error())
	}
	if more := len(all) - most; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w; %s", all[0], strings.Join(text, "; "))
}

func odd(err error) int {
	if errdefs.IsInvalidArgument(err) {
		return 1
	}
	return 0
}
