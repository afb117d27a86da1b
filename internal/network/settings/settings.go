// Package settings sets kernel parameters of the network. A new network namespace starts with values of the
// machine's first namespace, so Fresh sets each parameter that must hold there. Host sets parameters of the
// agent's own namespace, remembers them, and finds those that another program has changed since.
//
// It knows names and values, and nothing of bridges or sandboxes. Start at Host.
package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// root is the directory of kernel parameters.
const root = "/proc/sys"

// Set sets a parameter, such as net/ipv4/ip_forward, if it has another value; changed reports that. The error
// is fs.ErrNotExist when the kernel has no such parameter.
func Set(name, value string) (changed bool, err error) {
	have, err := read(name)
	if err != nil {
		return false, err
	}
	if have == value {
		return false, nil
	}
	if err := os.WriteFile(filepath.Join(root, name), []byte(value), 0o644); err != nil {
		return false, fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return true, nil
}

func read(name string) (string, error) {
	have, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", fmt.Errorf("read kernel setting %s: %w", name, err)
	}
	return strings.TrimSpace(string(have)), nil
}

// Forward says for each address family whether a namespace forwards packets.
type Forward struct{ V4, V6 bool }

// Fresh sets the parameters of the calling thread's namespace, which must be one of the agent's own. It sets every
// relevant parameter that a new namespace can inherit, for present and later interfaces. The caller sets the parameters
// in own itself.
func Fresh(f Forward, own ...string) error {
	flag := func(on bool) string {
		if on {
			return "1"
		}
		return "0"
	}
	v4 := map[string]string{
		"forwarding": flag(f.V4), "rp_filter": "0", "arp_ignore": "0", "arp_announce": "0", "arp_filter": "0", "arp_accept": "0",
		"proxy_arp": "0", "proxy_arp_pvlan": "0", "accept_redirects": "0", "send_redirects": "0", "secure_redirects": "1", "shared_media": "1",
		"accept_source_route": "0", "accept_local": "0", "route_localnet": "0", "src_valid_mark": "0", "bc_forwarding": "0",
		"disable_policy": "0", "disable_xfrm": "0", "drop_gratuitous_arp": "0", "drop_unicast_in_l2_multicast": "0", "force_igmp_version": "0",
		"promote_secondaries": "0", "ignore_routes_with_linkdown": "0", "log_martians": "0",
	}
	v6 := map[string]string{
		"disable_ipv6": "0", "forwarding": flag(f.V6), "accept_ra": "0", "accept_redirects": "0", "accept_source_route": "0", "autoconf": "0",
		"proxy_ndp": "0", "drop_unsolicited_na": "0", "drop_unicast_in_l2_multicast": "0", "addr_gen_mode": "0", "use_tempaddr": "0",
		"ignore_routes_with_linkdown": "0", "keep_addr_on_down": "0",
	}
	// Those of all interfaces come first: the kernel hands forwarding and disable_ipv6 on to the others.
	for _, which := range []string{"all", "default", "lo"} {
		for family, list := range map[string]map[string]string{"ipv4": v4, "ipv6": v6} {
			for _, name := range slices.Sorted(maps.Keys(list)) {
				parameter := filepath.Join("net", family, "conf", which, name)
				if slices.Contains(own, parameter) {
					continue
				}
				_, err := Set(parameter, list[name])
				if err != nil && !errors.Is(err, fs.ErrNotExist) { // an older kernel, or one without IPv6
					return err
				}
			}
		}
	}
	return nil
}

// Host is the parameters of the agent's own namespace that the agent has set or depends on. It is safe for concurrent
// use.
type Host struct {
	log *slog.Logger

	mu   sync.Mutex // guards want and open
	want map[string]wanted
	// open has the files of parameters that were read. They stay open because looking up a path takes long: the kernel
	// compares the entry of each network namespace of the machine.
	open map[string]*os.File
}

// wanted is the value that a parameter must have.
type wanted struct {
	value string
	ours  bool // the agent has set it
	hint  string
}

// NewHost returns a Host without parameters.
func NewHost(log *slog.Logger) *Host {
	return &Host{log: log, want: map[string]wanted{}, open: map[string]*os.File{}}
}

// Set sets a parameter, and remembers it as the agent's own.
func (h *Host) Set(name, value string) error {
	changed, err := Set(name, value)
	if err != nil {
		return err
	}
	if changed {
		h.log.Info("kernel setting changed", "name", name, "value", value)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.want[name] = wanted{value: value, ours: true}
	_, _ = h.read(name) // opens it: comparisons use no further descriptors
	return nil
}

// Expect remembers a parameter that the agent depends on and does not change. The hint is the advice for another
// value.
func (h *Host) Expect(name, value, hint string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.want[name] = wanted{value: value, hint: hint}
	_, _ = h.read(name) // opens the file, if it exists
}

// Close closes the files of the parameters. The Host can be used again.
func (h *Host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.open {
		h.close(name)
	}
}

// close closes the file of a parameter. Preconditions: h.mu is held.
func (h *Host) close(name string) {
	if f := h.open[name]; f != nil {
		_ = f.Close()
		delete(h.open, name)
	}
}

// read reads a parameter from its open file, and opens it again when that is of an interface that was removed.
// Preconditions: h.mu is held.
func (h *Host) read(name string) (string, error) {
	var buf [256]byte
	if f := h.open[name]; f != nil {
		if n, err := f.ReadAt(buf[:], 0); n > 0 && (err == nil || errors.Is(err, io.EOF)) {
			return strings.TrimSpace(string(buf[:n])), nil
		}
		h.close(name)
	}
	f, err := os.Open(filepath.Join(root, name))
	if err != nil {
		return "", fmt.Errorf("read kernel setting %s: %w", name, err)
	}
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		_ = f.Close()
		return "", fmt.Errorf("read kernel setting %s: %w", name, err)
	}
	h.open[name] = f
	return strings.TrimSpace(string(buf[:n])), nil
}

// Drift is a parameter that another program has changed.
type Drift struct {
	Name, Have, Want string
	Ours             bool   // the agent has set it, and sets it again
	Hint             string // for one that is not ours
}

func (d Drift) String() string { return fmt.Sprintf("%s is %s instead of %s", d.Name, d.Have, d.Want) }

// Drifts returns the parameters that have another value, by name. A parameter of an interface that is gone is none.
func (h *Host) Drifts() []Drift {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []Drift
	for _, name := range slices.Sorted(maps.Keys(h.want)) {
		w := h.want[name]
		if have, err := h.read(name); err == nil && have != w.value {
			list = append(list, Drift{name, have, w.value, w.ours, w.hint})
		}
	}
	return list
}

// Mend sets the agent's own parameters again, and returns the ones that it has changed. others are those that have
// another value afterwards and are not the agent's: the kernel sets some of them with one that is.
func (h *Host) Mend() (mended, others []Drift, err error) {
	list := h.Drifts()
	var errs []error
	for _, d := range list {
		if !d.Ours {
			continue
		}
		if _, err := Set(d.Name, d.Want); err != nil {
			errs = append(errs, err)
			continue
		}
		mended = append(mended, d)
	}
	if len(mended) > 0 {
		list = h.Drifts()
	}
	others = slices.DeleteFunc(list, func(d Drift) bool { return d.Ours })
	return mended, others, errors.Join(errs...)
}

// Router makes the host forward packets of an interface.
func (h *Host) Router(link string, is6 bool) error {
	set := [][2]string{
		{"net/ipv4/ip_forward", "1"},
		// Host ports work on 127.0.0.1 by it. The guard chain keeps sandboxes from using it.
		{"net/ipv4/conf/" + link + "/route_localnet", "1"},
	}
	if is6 {
		if err := h.keepRouterAdverts(link); err != nil {
			return err
		}
		set = append(set, [2]string{"net/ipv6/conf/all/forwarding", "1"})
	}
	// A sandbox is no router for this host.
	adverts := "net/ipv6/conf/" + link + "/accept_ra"
	for _, kv := range append(set, [2]string{adverts, "0"}) {
		err := h.Set(kv[0], kv[1])
		if kv[0] == adverts && !is6 && errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return err
		}
	}
	// ip_forward has set it. Somebody may have a reason to switch it off for this interface.
	h.Expect("net/ipv4/conf/"+link+"/forwarding", "1", "set it to 1: until then containers reach nothing beyond "+link)
	return nil
}

// keepRouterAdverts sets accept_ra to 2 where it is 1. A kernel that forwards ignores router advertisements otherwise,
// and the host would lose a default route that it has from a router.
func (h *Host) keepRouterAdverts(but string) error {
	const conf = "net/ipv6/conf"
	if on, err := read(conf + "/all/forwarding"); err != nil || on == "1" {
		return err
	}
	links, err := os.ReadDir(filepath.Join(root, conf))
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		name := filepath.Join(conf, l.Name(), "accept_ra")
		if have, err := read(name); err != nil || have != "1" || l.Name() == but || l.Name() == "all" || l.Name() == "default" {
			continue
		}
		if err := h.Set(name, "2"); err != nil {
			return err
		}
	}
	return nil
}
