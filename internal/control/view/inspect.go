package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/solo/translate"

	"github.com/longshore/longshore/internal/core"
)

// hidden replaces values that are not shown.
const hidden = "<hidden>"

// Network returns the network of a sandbox for inspect. A stopped sandbox no longer has addresses and
// ports.
func Network(sb core.Sandbox) map[string]any {
	n := map[string]any{
		"mode": sb.Network.Mode, "name": sb.Config.Network.Name, "hostname": sb.Config.Hostname, "domainname": sb.Config.Domainname, "config_ports": sb.Config.Network.Ports,
		"namespace": sb.Config.Namespaces.Net.Path,
	}
	n["networks"], n["names"] = attachments(sb), networkNames(sb)
	if sb.State == core.SandboxReady {
		n["addrs"], n["gateways"], n["interfaces"], n["ports"] = sb.Network.Addrs, sb.Network.Gateways, sb.Network.Interfaces, sb.Network.Ports
	}
	return n
}

// attachments returns each network of a sandbox for inspect.
func attachments(sb core.Sandbox) []map[string]any {
	var list []map[string]any
	for _, a := range sb.Config.Network.Attached() {
		if sb.Config.Namespaces.Net.Mode != core.Shared {
			break
		}
		name := translate.NetworkName(a.Network)
		network := map[string]any{"name": name, "aliases": a.Names, "requested": a.Addrs}
		if i := sb.Network.On(name); i >= 0 && sb.State == core.SandboxReady {
			iface := sb.Network.Interfaces[i]
			network["interface"], network["mac"], network["addrs"] = iface.Interface, iface.MAC, iface.Addrs
			var via []netip.Addr
			for _, g := range sb.Network.Gateways {
				if slices.ContainsFunc(iface.Addrs, func(p netip.Prefix) bool { return p.Contains(g) }) {
					via = append(via, g)
				}
			}
			network["gateways"] = via
		}
		list = append(list, network)
	}
	return list
}

// JSON returns v as indented JSON with the members of extra. Unless showEnv is set it hides the values of
// environment variables, and the face's private record, which may contain them too.
func JSON(v any, extra map[string]any, showEnv bool) ([]byte, error) {
	raw, err := marshal(v)
	if err != nil {
		return nil, err
	}
	if len(extra) > 0 {
		add, err := marshal(extra)
		if err != nil {
			return nil, err
		}
		// Both are objects and become one; the record's members keep their order.
		raw = append(append(raw[:len(raw)-1], ','), add[1:]...)
	}
	if !showEnv {
		if raw, err = maskJSON(raw); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return out.Bytes(), nil
}

// maskJSON hides possible secrets at any depth: values in lists of environment variables, and
// members named data.
func maskJSON(raw []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	mask(v)
	return marshal(v)
}

// marshal is json.Marshal without escaping of <, > and &.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

// mask hides possible secrets in v.
func mask(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			mask(e)
		}
	case map[string]any:
		for k, e := range v {
			switch list, isList := e.([]any); {
			case isList && strings.EqualFold(k, "env"):
				maskEnv(list)
			case k == "data", k == "saved_spec":
				v[k] = hidden
			default:
				mask(e)
			}
		}
	}
}

// maskEnv hides the values of environment variables.
func maskEnv(list []any) {
	for i, e := range list {
		text, ok := e.(string)
		if !ok {
			list[i] = hidden
			continue
		}
		if name, _, ok := strings.Cut(text, "="); ok {
			list[i] = name + "=" + hidden
		}
	}
}

// WithoutOutput returns a copy of h without the output of the container's programs.
func WithoutOutput(h *core.Health) *core.Health {
	if h == nil {
		return nil
	}
	out := *h
	out.Probes = slices.Clone(h.Probes)
	for i := range out.Probes {
		out.Probes[i].Output = ""
	}
	return &out
}
