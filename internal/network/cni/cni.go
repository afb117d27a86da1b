// Package cni is the driver of networks that CNI plugins make. It runs the plugins; package plugins reads their
// configurations.
//
// Start at Driver.
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/plugins"
	"github.com/longshore/longshore/internal/span"
)

// keyCNI starts the keys of the records of CNI calls. A record is written before the first plugin
// runs and contains the configuration, so that DEL always gets the configuration that ADD got.
const keyCNI = "cni/"

const (
	// pluginTime bounds each call of a plugin. Plugins may wait for a DHCP server, or for a daemon
	// of theirs that starts.
	pluginTime = 2 * time.Minute
	// statusTime bounds the STATUS calls of one request for the network's condition.
	statusTime = 10 * time.Second
)

// Driver runs CNI plugins.
type Driver struct {
	cfg      netconf.CNIConfig
	store    core.KV
	networks *plugins.Configs
	lib      *libcni.CNIConfig

	mu     sync.Mutex // guards ranges
	ranges []netip.Prefix
}

// attached is one interface in the record of a CNI call.
type attached struct {
	Interface string            `json:"interface"`
	List      json.RawMessage   `json:"list"`
	Args      map[string]string `json:"args,omitempty"`
	Caps      map[string]any    `json:"caps,omitempty"`
}

// New returns a driver that stores its records in store, and the results of plugins in stateDir.
func New(cfg netconf.CNIConfig, stateDir string, store core.KV, log *slog.Logger) *Driver {
	return &Driver{
		cfg: cfg, store: store, networks: plugins.NewConfigs(cfg.ConfDir, log),
		lib: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, filepath.Join(stateDir, "cni"), &plugins.Exec{Timeout: pluginTime}),
	}
}

// SetRanges sets the ranges for plugins that take them (capability ipRanges).
func (c *Driver) SetRanges(ranges []ipam.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = ipam.Prefixes(ranges)
}

// NotReady returns why sandboxes cannot be connected, "" when they can.
func (c *Driver) NotReady(ctx context.Context) string {
	list, err := c.networks.Network("")
	if err != nil {
		return "cni: " + strings.TrimSuffix(err.Error(), ": "+errdefs.ErrFailedPrecondition.Error())
	}
	for _, p := range list.Plugins {
		if !slices.ContainsFunc(c.cfg.BinDirs, func(dir string) bool {
			fi, err := os.Stat(filepath.Join(dir, p.Network.Type))
			return err == nil && fi.Mode().IsRegular()
		}) {
			return fmt.Sprintf("cni: plugin %s of network %s is not in %s", p.Network.Type, list.Name, strings.Join(c.cfg.BinDirs, ", "))
		}
	}
	// Plugins support STATUS from version 1.1 on; for others none is executed.
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	if err := c.lib.GetStatusNetworkList(ctx, list); err != nil {
		return fmt.Sprintf("cni: network %s is not ready: %s", list.Name, err)
	}
	return ""
}

// Attach implements network.Driver: it runs ADD for each requested interface.
func (c *Driver) Attach(ctx context.Context, req core.NetworkRequest, _ core.NetworkStatus) (_ core.NetworkStatus, err error) {
	for _, p := range req.Config.Ports {
		if p.Host == 0 || p.HostLast > p.Host {
			return core.NetworkStatus{}, fmt.Errorf("port %d: name its host port, because CNI's plugins choose none: %w", p.Container, errdefs.ErrInvalidArgument)
		}
	}
	wanted := req.Config.Attach
	if len(wanted) == 0 {
		wanted = []core.Attachment{{Network: req.Config.Name, Interface: "eth0"}}
	}
	// An earlier Setup may have been interrupted.
	if err := c.del(ctx, req); err != nil {
		return core.NetworkStatus{}, err
	}
	var all []attached
	for i, w := range wanted {
		list, err := c.networks.Network(w.Network)
		if err != nil {
			return core.NetworkStatus{}, err
		}
		raw, err := plugins.Encode(list)
		if err != nil {
			return core.NetworkStatus{}, err
		}
		if w.Interface == "" {
			w.Interface = fmt.Sprintf("eth%d", i)
		}
		all = append(all, attached{Interface: w.Interface, List: raw, Args: req.Config.Args, Caps: c.capabilities(req.Config, w, i == 0)})
	}
	record, err := json.Marshal(all)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	if _, err := kernel.NoneStatus(req.Namespace); err != nil { // loopback is set up without a plugin
		return core.NetworkStatus{}, err
	}
	if err := c.store.Put(keyCNI+string(req.Sandbox), record); err != nil {
		return core.NetworkStatus{}, fmt.Errorf("store the CNI request: %w", err)
	}
	defer func() {
		if err != nil {
			const patience = 30 * time.Second
			undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), patience, errors.New("CNI DEL took too long"))
			defer cancel()
			err = errors.Join(err, c.del(undo, req))
		}
	}()
	st := core.NetworkStatus{Mode: string(netconf.ModeCNI), Ports: req.Config.Ports}
	var raws []json.RawMessage
	for _, a := range all {
		list, rt, err := a.call(req)
		if err != nil {
			return core.NetworkStatus{}, err
		}
		call, end := span.Start(ctx, "cni ADD", span.Attr{Key: "network", Value: list.Name})
		result, err := c.lib.AddNetworkList(call, list, rt)
		if end(err); err != nil {
			return core.NetworkStatus{}, fmt.Errorf("cni ADD %s of network %s: %w", a.Interface, list.Name, plugins.Classify(err))
		}
		raw, err := collect(&st, list.Name, result)
		if err != nil {
			return core.NetworkStatus{}, fmt.Errorf("cni ADD %s of network %s: %w", a.Interface, list.Name, err)
		}
		raws = append(raws, raw)
	}
	if err := kernel.CloseMetadataIn(req.Namespace, req.Config); err != nil {
		return core.NetworkStatus{}, err
	}
	st.Raw = raws[0]
	if len(raws) > 1 {
		if st.Raw, err = json.Marshal(raws); err != nil {
			return core.NetworkStatus{}, err
		}
	}
	return st, nil
}

// call prepares a call of the plugins for one interface.
func (a attached) call(req core.NetworkRequest) (*libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	list, err := libcni.NetworkConfFromBytes(a.List)
	if err != nil {
		return nil, nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	rt := &libcni.RuntimeConf{
		ContainerID: string(req.Sandbox), NetNS: req.Namespace, IfName: a.Interface, CapabilityArgs: a.Caps,
		Args: [][2]string{{"IgnoreUnknown", "1"}},
	}
	for _, k := range sortedKeys(a.Args) {
		rt.Args = append(rt.Args, [2]string{k, a.Args[k]})
	}
	return list, rt, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// capabilities returns the runtimeConfig for the plugins that declare them. Ports, bandwidth and
// DNS are for the first interface.
func (c *Driver) capabilities(cfg core.NetworkConfig, w core.Attachment, first bool) map[string]any {
	caps := map[string]any{}
	if first && len(cfg.Ports) > 0 {
		var maps []map[string]any
		for _, p := range cfg.Ports {
			proto := p.Proto
			if proto == "" {
				proto = "tcp"
			}
			m := map[string]any{"hostPort": p.Host, "containerPort": p.Container, "protocol": proto}
			if p.HostIP.IsValid() {
				m["hostIP"] = p.HostIP.String()
			}
			maps = append(maps, m)
		}
		caps["portMappings"] = maps
	}
	if d := cfg.DNS; first && len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		caps["dns"] = map[string]any{"servers": d.Servers, "searches": d.Searches, "options": d.Options}
	}
	if first && (cfg.IngressRate > 0 || cfg.EgressRate > 0) {
		b := map[string]uint64{}
		if cfg.IngressRate > 0 {
			b["ingressRate"], b["ingressBurst"] = cfg.IngressRate, kernel.Burst(cfg.IngressRate)
		}
		if cfg.EgressRate > 0 {
			b["egressRate"], b["egressBurst"] = cfg.EgressRate, kernel.Burst(cfg.EgressRate)
		}
		caps["bandwidth"] = b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ranges) > 0 {
		var sets [][]map[string]string
		for _, p := range c.ranges {
			sets = append(sets, []map[string]string{{"subnet": p.String()}})
		}
		caps["ipRanges"] = sets
	}
	if len(w.Addrs) > 0 {
		caps["ips"] = w.Addrs
	}
	if w.MAC != "" {
		caps["mac"] = w.MAC
	}
	return caps
}

// collect adds one result to the status and returns it unchanged.
func collect(st *core.NetworkStatus, network string, result types.Result) (json.RawMessage, error) {
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	res, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	at := map[int]int{} // index in the result → index in the status
	for i, ifc := range res.Interfaces {
		if ifc == nil || ifc.Sandbox == "" {
			continue // the host's end
		}
		at[i] = len(st.Interfaces)
		st.Interfaces = append(st.Interfaces, core.Attachment{Network: network, Interface: ifc.Name, MAC: ifc.Mac, MTU: ifc.Mtu})
	}
	for _, ip := range res.IPs {
		if ip == nil {
			return nil, fmt.Errorf("the result has an address that is not valid: %w", errdefs.ErrDataLoss)
		}
		ones, _ := ip.Address.Mask.Size()
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("the result has an address that is not valid: %w", errdefs.ErrDataLoss)
		}
		a = a.Unmap()
		st.Addrs = append(st.Addrs, a)
		if gw, ok := netip.AddrFromSlice(ip.Gateway); ok {
			st.Gateways = append(st.Gateways, gw.Unmap())
		}
		if ip.Interface != nil {
			if i, ok := at[*ip.Interface]; ok {
				st.Interfaces[i].Addrs = append(st.Interfaces[i].Addrs, netip.PrefixFrom(a, ones))
			}
		}
	}
	st.DNS.Servers = append(st.DNS.Servers, res.DNS.Nameservers...)
	st.DNS.Searches = append(st.DNS.Searches, res.DNS.Search...)
	if res.DNS.Domain != "" && len(res.DNS.Search) == 0 {
		st.DNS.Searches = append(st.DNS.Searches, res.DNS.Domain)
	}
	st.DNS.Options = append(st.DNS.Options, res.DNS.Options...)
	return raw, nil
}

// record returns the record of the sandbox's CNI calls; nil if there is none.
func (c *Driver) record(id core.ID) ([]attached, error) {
	raw, err := c.store.Get(keyCNI + string(id))
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the stored CNI request: %w", err)
	}
	var all []attached
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("read the stored CNI request: %w: %w", err, errdefs.ErrDataLoss)
	}
	return all, nil
}

// Detach implements network.Driver. The plugins remove their interfaces together, in Release.
func (c *Driver) Detach(context.Context, core.NetworkRequest, string) error { return nil }

// Release implements network.Driver.
func (c *Driver) Release(ctx context.Context, req core.NetworkRequest, _ string) error {
	return c.del(ctx, req)
}

// del runs DEL for each interface in the sandbox's record, in reverse order.
func (c *Driver) del(ctx context.Context, req core.NetworkRequest) error {
	all, err := c.record(req.Sandbox)
	if err != nil || all == nil {
		return err
	}
	if _, err := os.Stat(req.Namespace); err != nil {
		req.Namespace = "" // in CNI this means that the namespace is gone
	}
	for _, a := range slices.Backward(all) {
		list, rt, err := a.call(req)
		if err != nil {
			return err
		}
		call, end := span.Start(ctx, "cni DEL", span.Attr{Key: "network", Value: list.Name})
		err = c.lib.DelNetworkList(call, list, rt)
		if end(err); err != nil {
			return fmt.Errorf("cni DEL %s of network %s: %w", a.Interface, list.Name, plugins.Classify(err))
		}
	}
	return c.store.Delete(keyCNI + string(req.Sandbox))
}

// Check implements network.Driver: it runs CHECK where the configuration's version supports it.
func (c *Driver) Check(ctx context.Context, req core.NetworkRequest) error {
	all, err := c.record(req.Sandbox)
	if err != nil {
		return err
	}
	if all == nil {
		return fmt.Errorf("no plugin has run for it: %w", errdefs.ErrFailedPrecondition)
	}
	for _, a := range all {
		list, rt, err := a.call(req)
		if err != nil {
			return err
		}
		if has, err := version.GreaterThanOrEqualTo(list.CNIVersion, "0.4.0"); err != nil || !has || list.DisableCheck {
			continue
		}
		if err := c.lib.CheckNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("cni CHECK %s of network %s: %w: %w", a.Interface, list.Name, err, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// Holders implements network.Driver: the sandboxes that have a record of CNI calls.
func (c *Driver) Holders() []core.ID {
	var ids []core.ID
	for key := range c.store.All(keyCNI) {
		ids = append(ids, core.ID(strings.TrimPrefix(key, keyCNI)))
	}
	return ids
}

// Recover implements network.Driver: it runs DEL for sandboxes that are gone.
func (c *Driver) Recover(ctx context.Context, live []core.NetworkRequest) error {
	alive := map[core.ID]bool{}
	for _, req := range live {
		alive[req.Sandbox] = true
	}
	var errs []error
	for _, id := range c.Holders() {
		if !alive[id] {
			errs = append(errs, c.del(ctx, core.NetworkRequest{Sandbox: id}))
		}
	}
	return errors.Join(errs...)
}
