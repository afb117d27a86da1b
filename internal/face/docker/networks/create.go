package networks

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// createRequest is the body of a create.
type createRequest struct {
	Name       string
	Driver     string
	Scope      string
	EnableIPv4 *bool
	EnableIPv6 *bool
	IPAM       *dockertypes.IPAM
	Internal   bool
	Attachable bool
	Ingress    bool
	ConfigOnly bool
	ConfigFrom *dockertypes.ConfigReference
	Options    map[string]string
	Labels     map[string]string
}

// errNoManager is dockerd's answer where a Swarm is needed.
const errNoManager = `This node is not a swarm manager. Use "docker swarm init" or "docker swarm join" to connect this node to swarm and try again.`

// create answers POST /networks/create.
func (s *Server) create(w http.ResponseWriter, r *dockerhttp.Request) error {
	var req createRequest
	if err := r.Decode(&req); err != nil {
		return err
	}
	if r.API.Before("1.48") {
		req.EnableIPv4 = nil
	}
	def, err := definition(req)
	if err != nil {
		return err
	}
	named := func(d core.NetworkDefinition) bool { return d.Name == def.Name }
	taken := errdefs.ErrAlreadyExists.WithMessage("network with name " + def.Name + " already exists")
	defined := s.Networks.Defined()
	if slices.ContainsFunc(defined, named) {
		return taken
	}
	if err := overlap(def, defined); err != nil {
		return err
	}
	made, err := s.Networks.Define(r.Context(), def)
	if errdefs.IsAlreadyExists(err) && slices.ContainsFunc(s.Networks.Defined(), named) { // made meanwhile
		return taken
	}
	if err != nil {
		return err
	}
	s.event("create", Network{Name: made.Name, ID: definedID(made), Driver: Bridge}, "")
	return dockerhttp.Reply(w, http.StatusCreated, struct {
		ID      string `json:"Id"`
		Warning string
	}{ID: definedID(made)})
}

// overlap refuses a range that another network has.
func overlap(def core.NetworkDefinition, defined []core.NetworkDefinition) error {
	for _, sub := range def.Subnets {
		for _, other := range defined {
			for _, have := range other.Subnets {
				if have.Range.Overlaps(sub.Range) {
					return errdefs.ErrPermissionDenied.WithMessage("invalid pool request: Pool overlaps with other one on this address space")
				}
			}
		}
	}
	return nil
}

// definition translates a request, and refuses one that cannot be fulfilled.
func definition(req createRequest) (core.NetworkDefinition, error) {
	def := core.NetworkDefinition{
		Name: req.Name, Internal: req.Internal, Attachable: req.Attachable, Options: maps.Clone(req.Options), Labels: req.Labels,
	}
	if err := refusal(req); err != nil {
		return def, err
	}
	if err := options(&def, req.Options); err != nil {
		return def, err
	}
	if req.EnableIPv4 != nil {
		def.NoIPv4 = !*req.EnableIPv4
		delete(def.Options, optionIPv4)
	}
	if req.EnableIPv6 != nil {
		def.IPv6 = *req.EnableIPv6
		delete(def.Options, optionIPv6)
	}
	if req.IPAM == nil {
		return def, nil
	}
	if d := req.IPAM.Driver; d != "" && d != "default" {
		return def, errNoPlugin(d)
	}
	def.IPAMOptions = req.IPAM.Options
	err := subnets(&def, req.IPAM.Config)
	return def, err
}

func errNoPlugin(name string) error {
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("plugin %q not found", name))
}

// refusal returns the error of a request for a network that cannot exist here.
func refusal(req createRequest) error {
	switch {
	case Predefined(req.Name):
		return errdefs.ErrPermissionDenied.WithMessage("operation is not permitted on predefined " + req.Name + " network ")
	case strings.TrimSpace(req.Name) == "":
		return invalid.Plainf("invalid name: name is empty")
	case req.Driver == "overlay":
		return errdefs.ErrPermissionDenied.WithMessage(errNoManager)
	case req.Driver == Host || req.Driver == "null":
		return errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf("only one instance of %q network is allowed", req.Driver))
	case req.Driver != "" && req.Driver != Bridge:
		return errNoPlugin(req.Driver)
	case req.Scope == "swarm":
		return errdefs.ErrUnavailable.WithMessage(errNoManager)
	case req.Ingress:
		return errdefs.ErrPermissionDenied.WithMessage("Ingress network can only be global scope network")
	case req.ConfigOnly:
		return invalid.Plainf("configuration-only networks are not supported: give each network its own configuration")
	case req.ConfigFrom != nil && req.ConfigFrom.Network != "":
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("configuration network %q does not exist", req.ConfigFrom.Network))
	}
	return nil
}

// The options that change a network.
const (
	optionBridge      = "com.docker.network.bridge.name"
	optionICC         = "com.docker.network.bridge.enable_icc"
	optionMasquerade  = "com.docker.network.bridge.enable_ip_masquerade"
	optionHostIP      = "com.docker.network.bridge.host_binding_ipv4"
	optionInhibitIPv4 = "com.docker.network.bridge.inhibit_ipv4"
	optionGateway4    = "com.docker.network.bridge.gateway_mode_ipv4"
	optionGateway6    = "com.docker.network.bridge.gateway_mode_ipv6"
	optionTrusted     = "com.docker.network.bridge.trusted_host_interfaces"
	optionMTU         = "com.docker.network.driver.mtu"
	optionPrefix      = "com.docker.network.container_iface_prefix"
	optionSource4     = "com.docker.network.host_ipv4"
	optionSource6     = "com.docker.network.host_ipv6"
	optionIPv4        = "com.docker.network.enable_ipv4"
	optionIPv6        = "com.docker.network.enable_ipv6"
)

// options applies the options that the driver knows. Others are stored only.
func options(def *core.NetworkDefinition, all map[string]string) error {
	var errs []error
	boolean := func(key string, without bool) bool {
		text, ok := all[key]
		if !ok {
			return without
		}
		v, err := strconv.ParseBool(text)
		switch {
		case err != nil && (key == optionIPv4 || key == optionIPv6):
			errs = append(errs, fmt.Errorf("driver-opt %q is not a valid bool", key))
		case err != nil:
			errs = append(errs, fmt.Errorf("failed to parse %s value: %s (%w)", key, text, err))
		}
		return v
	}
	def.NoIPv4, def.IPv6 = !boolean(optionIPv4, true), boolean(optionIPv6, false)
	def.Isolated, def.NoMasquerade = !boolean(optionICC, true), !boolean(optionMasquerade, true)
	def.Interface = all[optionBridge]
	if text := all[optionMTU]; text != "" {
		mtu, err := strconv.Atoi(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("failed to parse %s value: %s (%w)", optionMTU, text, err))
		}
		def.MTU = mtu
	}
	if text := all[optionHostIP]; text != "" {
		addr, err := netip.ParseAddr(text)
		if err != nil || !addr.Unmap().Is4() {
			errs = append(errs, fmt.Errorf("%s: %q is not an IPv4 address", optionHostIP, text))
		}
		if addr = addr.Unmap(); !addr.IsUnspecified() {
			def.HostIP = addr
		}
	}
	if boolean(optionInhibitIPv4, false) {
		errs = append(errs, fmt.Errorf("%s: a bridge without an IPv4 address is not supported", optionInhibitIPv4))
	}
	for key, only := range map[string]string{optionGateway4: "nat", optionGateway6: "nat", optionPrefix: "eth", optionTrusted: "", optionSource4: "", optionSource6: ""} {
		if v := all[key]; v != "" && v != only {
			hint := ""
			if only != "" {
				hint = ", only " + only
			}
			errs = append(errs, fmt.Errorf("%s: %q is not supported%s", key, v, hint))
		}
	}
	if len(errs) > 0 {
		return invalid.Plainf("%w", joined(errs))
	}
	return nil
}

// subnets checks and translates the ranges of addresses. Those of IPv6 have no effect without EnableIPv6, as in dockerd.
func subnets(def *core.NetworkDefinition, list []dockertypes.IPAMConfig) error {
	var errs []error
	for _, c := range list {
		subnet, err := netip.ParsePrefix(c.Subnet)
		if err != nil {
			errs = append(errs, fmt.Errorf("invalid subnet %s: invalid CIDR block notation", c.Subnet))
			continue
		}
		if subnet.Addr().Is6() && !def.IPv6 {
			continue
		}
		if subnet != subnet.Masked() {
			errs = append(errs, fmt.Errorf("invalid subnet %s: it should be %s", subnet, subnet.Masked()))
		}
		sub := core.Subnet{Range: subnet}
		var bad []error
		sub.Pool, bad = pool(c.IPRange, subnet)
		errs = append(errs, bad...)
		if sub.Gateway, err = within(c.Gateway, subnet); err != nil {
			errs = append(errs, fmt.Errorf("invalid gateway %s: %w", c.Gateway, err))
		}
		for _, name := range slices.Sorted(maps.Keys(c.AuxAddress)) {
			a, err := within(c.AuxAddress[name], subnet)
			if err != nil {
				errs = append(errs, fmt.Errorf("invalid auxiliary address %s: %w", name, err))
			}
			if sub.Reserved == nil {
				sub.Reserved = map[string]netip.Addr{}
			}
			if a.IsValid() {
				sub.Reserved[name] = a
			}
		}
		def.Subnets = append(def.Subnets, sub)
	}
	if len(errs) > 0 {
		return invalid.Plainf("invalid network config:\n%w", joined(errs))
	}
	return nil
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// pool parses the part of a subnet that addresses are chosen from; the zero Prefix is all of it.
func pool(text string, subnet netip.Prefix) (netip.Prefix, []error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, []error{fmt.Errorf("invalid ip-range %s: invalid CIDR block notation", text)}
	}
	if p.Addr().Is4() != subnet.Addr().Is4() {
		return p, []error{fmt.Errorf("invalid ip-range %s: parent subnet is an %s block", text, family(subnet.Addr()))}
	}
	var errs []error
	if p.Bits() < subnet.Bits() {
		errs = append(errs, fmt.Errorf("invalid ip-range %s: CIDR block is bigger than its parent subnet %s", text, subnet))
	}
	if p != p.Masked() {
		errs = append(errs, fmt.Errorf("invalid ip-range %s: it should be %s", p, p.Masked()))
	}
	if !subnet.Overlaps(p) {
		errs = append(errs, fmt.Errorf("invalid ip-range %s: parent subnet %s doesn't contain ip-range", text, subnet))
	}
	return p, errs
}

// within parses an address of a subnet; the zero Addr is none.
func within(text string, subnet netip.Prefix) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.Zone() != "":
		return netip.Addr{}, errors.New("invalid address")
	case a.Is4() != subnet.Addr().Is4():
		return a, fmt.Errorf("parent subnet is an %s block", family(subnet.Addr()))
	case !subnet.Contains(a):
		return a, fmt.Errorf("parent subnet %s doesn't contain this address", subnet)
	}
	return a, nil
}

// joined is several errors as dockerd shows them.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	var lines []string
	for _, err := range errs {
		lines = append(lines, "* "+strings.ReplaceAll(err.Error(), "\n", "\n\t"))
	}
	return errors.New(strings.Join(lines, "\n"))
}
