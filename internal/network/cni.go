package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
)

// keyCNI starts the keys of what CNI plugins were asked to make. The record is written before the
// first plugin runs and contains the configuration: whatever happens then, DEL gets the
// configuration that ADD got.
const keyCNI = "cni/"

// cni runs CNI plugins. Configurations are read when they are used, so that a changed directory
// requires no restart.
type cni struct {
	cfg   CNIConfig
	store core.KV
	log   *slog.Logger
	lib   *libcni.CNIConfig

	mu     sync.Mutex // guards ranges, seen, lists, bad
	ranges []netip.Prefix
	seen   string // the names, sizes and times of the files when lists was read
	lists  []*libcni.NetworkConfigList
	bad    []string // files that cannot be used, and why
}

// attached is one interface that plugins were asked to make.
type attached struct {
	Interface string            `json:"interface"`
	List      json.RawMessage   `json:"list"`
	Args      map[string]string `json:"args,omitempty"`
	Caps      map[string]any    `json:"caps,omitempty"`
}

func newCNI(cfg CNIConfig, stateDir string, store core.KV, log *slog.Logger) *cni {
	return &cni{
		cfg: cfg, store: store, log: log,
		lib: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, filepath.Join(stateDir, "cni"), nil),
	}
}

// setRanges sets the ranges for plugins that take them (capability ipRanges).
func (c *cni) setRanges(ranges []ipam.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = prefixes(ranges)
}

// networks returns the configurations, read again when the directory has changed; the first is
// the default.
func (c *cni) networks() ([]*libcni.NetworkConfigList, []string, error) {
	files, err := confFiles(c.cfg.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read CNI configurations: %w", err)
	}
	var look strings.Builder
	for _, f := range files {
		if fi, err := os.Stat(f); err == nil {
			fmt.Fprintf(&look, "%s %d %d\n", f, fi.Size(), fi.ModTime().UnixNano())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if look.String() == c.seen {
		return c.lists, c.bad, nil
	}
	var lists []*libcni.NetworkConfigList
	var bad []string
	for _, f := range files {
		list, err := loadConf(f)
		switch {
		case err != nil:
			bad = append(bad, fmt.Sprintf("%s: %s", filepath.Base(f), err))
			c.log.Warn("ignoring a CNI configuration that is not valid", "file", f, "error", err.Error())
		default:
			lists = append(lists, list)
		}
	}
	c.seen, c.lists, c.bad = look.String(), lists, bad
	if len(lists) > 0 {
		c.log.Info("CNI configuration read", "network", lists[0].Name, "networks", len(lists))
	}
	return lists, bad, nil
}

// loadConf reads one file: a list of plugins or, depending on its name, a single plugin.
func loadConf(file string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(file) == ".conflist" {
		list, err := libcni.NetworkConfFromFile(file)
		if err == nil && len(list.Plugins) == 0 {
			err = errors.New("no plugins in list")
		}
		return list, err
	}
	// The older form has one plugin without a list around it.
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var head struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
		Type       string `json:"type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	if head.Type == "" {
		return nil, errors.New("no plugin type")
	}
	list, err := json.Marshal(map[string]any{"name": head.Name, "cniVersion": head.CNIVersion, "plugins": []json.RawMessage{raw}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(list)
}

// network returns the network of that name; "" or "default" is the first.
func (c *cni) network(name string) (*libcni.NetworkConfigList, error) {
	lists, bad, err := c.networks()
	if err != nil {
		return nil, err
	}
	if name == "" || name == "default" {
		if len(lists) == 0 {
			return nil, fmt.Errorf("%s: %w", noConf(c.cfg.ConfDir, bad), errdefs.ErrFailedPrecondition)
		}
		return lists[0], nil
	}
	i := slices.IndexFunc(lists, func(l *libcni.NetworkConfigList) bool { return l.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no CNI network %q in %s: %w", name, c.cfg.ConfDir, errdefs.ErrNotFound)
	}
	return lists[i], nil
}

func noConf(dir string, bad []string) string {
	if len(bad) > 0 {
		return fmt.Sprintf("no usable CNI configuration in %s: %s", dir, strings.Join(bad, "; "))
	}
	return "no CNI configuration in " + dir + ": put a .conflist there"
}

// notReady returns why sandboxes cannot be connected, "" when they can.
func (c *cni) notReady(ctx context.Context) string {
	list, err := c.network("")
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
	if err := c.lib.GetStatusNetworkList(ctx, list); err != nil {
		return fmt.Sprintf("cni: network %s is not ready: %s", list.Name, err)
	}
	return ""
}

// add runs ADD for each requested interface.
func (c *cni) add(ctx context.Context, req core.NetworkRequest) (_ core.NetworkStatus, err error) {
	for _, p := range req.Config.Ports {
		if p.Host == 0 {
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
		list, err := c.network(w.Network)
		if err != nil {
			return core.NetworkStatus{}, err
		}
		raw, err := listBytes(list)
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
	if _, err := noneStatus(req.Namespace); err != nil { // loopback is set up without a plugin
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
	st := core.NetworkStatus{Mode: string(ModeCNI), Ports: req.Config.Ports}
	var raws []json.RawMessage
	for _, a := range all {
		list, rt, err := a.call(req)
		if err != nil {
			return core.NetworkStatus{}, err
		}
		result, err := c.lib.AddNetworkList(ctx, list, rt)
		if err != nil {
			return core.NetworkStatus{}, fmt.Errorf("cni ADD %s of network %s: %w", a.Interface, list.Name, classify(err))
		}
		raw, err := collect(&st, list.Name, result)
		if err != nil {
			return core.NetworkStatus{}, fmt.Errorf("cni ADD %s of network %s: %w", a.Interface, list.Name, err)
		}
		raws = append(raws, raw)
	}
	st.Raw = raws[0]
	if len(raws) > 1 {
		if st.Raw, err = json.Marshal(raws); err != nil {
			return core.NetworkStatus{}, err
		}
	}
	return st, nil
}

// listBytes encodes a list together with its plugins, which may come from other files.
func listBytes(list *libcni.NetworkConfigList) ([]byte, error) {
	out := struct {
		Name         string            `json:"name"`
		CNIVersion   string            `json:"cniVersion,omitempty"`
		DisableCheck bool              `json:"disableCheck,omitempty"`
		Plugins      []json.RawMessage `json:"plugins"`
	}{Name: list.Name, CNIVersion: list.CNIVersion, DisableCheck: list.DisableCheck}
	for _, p := range list.Plugins {
		out.Plugins = append(out.Plugins, p.Bytes)
	}
	return json.Marshal(out)
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

// The burst of the bandwidth capability, in bits: a tenth of a second's worth, at least a few
// full packets, at most what the plugin accepts.
const (
	minBurst = 64 * 1024 * 8
	maxBurst = 1<<31 - 1
)

func burst(rate uint64) uint64 { return min(max(rate/10, minBurst), maxBurst) }

// capabilities returns the runtimeConfig for the plugins that declare them. Ports, bandwidth and
// DNS are for the first interface.
func (c *cni) capabilities(cfg core.NetworkConfig, w core.Attachment, first bool) map[string]any {
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
			b["ingressRate"], b["ingressBurst"] = cfg.IngressRate, burst(cfg.IngressRate)
		}
		if cfg.EgressRate > 0 {
			b["egressRate"], b["egressBurst"] = cfg.EgressRate, burst(cfg.EgressRate)
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

// classify gives a plugin's error a class where CNI's code has one.
func classify(err error) error {
	var said *types.Error
	if !errors.As(err, &said) {
		return err
	}
	switch said.Code {
	case types.ErrTryAgainLater, types.ErrPluginNotAvailable, types.ErrLimitedConnectivity:
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case types.ErrInvalidNetworkConfig, types.ErrInvalidEnvironmentVariables, types.ErrUnsupportedField, types.ErrIncompatibleCNIVersion:
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	default:
		return err
	}
}

// record returns what plugins were asked to make; nil when nothing was.
func (c *cni) record(id core.ID) ([]attached, error) {
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

// del runs DEL for all that add was asked to make, in reverse order.
func (c *cni) del(ctx context.Context, req core.NetworkRequest) error {
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
		if err := c.lib.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("cni DEL %s of network %s: %w", a.Interface, list.Name, classify(err))
		}
	}
	return c.store.Delete(keyCNI + string(req.Sandbox))
}

// check runs CHECK where the configuration's version supports it.
func (c *cni) check(ctx context.Context, req core.NetworkRequest) error {
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

// sandboxes returns the sandboxes for which plugins have made something.
func (c *cni) sandboxes() []core.ID {
	var ids []core.ID
	for key := range c.store.All(keyCNI) {
		ids = append(ids, core.ID(strings.TrimPrefix(key, keyCNI)))
	}
	return ids
}

// recover runs DEL for sandboxes that are gone.
func (c *cni) recover(ctx context.Context, alive map[core.ID]bool) error {
	var errs []error
	for _, id := range c.sandboxes() {
		if !alive[id] {
			errs = append(errs, c.del(ctx, core.NetworkRequest{Sandbox: id}))
		}
	}
	return errors.Join(errs...)
}
